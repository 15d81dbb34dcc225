/* Sending for bytes that will be read soon: they lie anywhere, the processor cannot guess where. */

#ifndef RMQ_PREFETCH_H
#define RMQ_PREFETCH_H

/* A function that does nothing else has no effect that a compiler knows of: it leaves calls of it out, unless it is a
   part of who calls it before anybody thinks about that. */
#if defined(__GNUC__)
#define PREFETCH(place) __builtin_prefetch(place)
#define PREFETCHING static inline __attribute__((always_inline)) void
#else
#define PREFETCH(place) ((void)(place))
#define PREFETCHING static inline void
#endif

#endif
