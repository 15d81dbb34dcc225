/* Sending for bytes that will be read soon: they lie anywhere, the processor cannot guess where. */

#ifndef RMQ_PREFETCH_H
#define RMQ_PREFETCH_H

#if defined(__GNUC__)
#define PREFETCH(place) __builtin_prefetch(place)
#else
#define PREFETCH(place) ((void)(place))
#endif

#endif
