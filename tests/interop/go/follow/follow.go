// Package follow reads instructions and writes answers, for the clients of the matrix in Go:
// tests/helpers/interop/program.py has the instructions.
package follow

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"sync"
	"time"
)

const longestLineBytes = 1 << 20

const defaultTimeout = 20 * time.Second

// Timeout is that of a request.
func Timeout() time.Duration {
	told, exists := os.LookupEnv("CLIENT_TIMEOUT_MS")
	if !exists {
		return defaultTimeout
	}
	timeoutMs, err := strconv.Atoi(told)
	if err != nil {
		panic(err)
	}
	return time.Duration(timeoutMs) * time.Millisecond
}

// Instruction has the fields of all instructions.
type Instruction struct {
	Do, Topic, Group, Mode, Tags, SQL, End, Check, Handle string
	Messages                                              []Message
	Fails, Replies, Trace                                 bool
	Count                                                 int
	TimeoutMs                                             int64
}

// Message is one to send.
type Message struct {
	Body, Tags, Keys, Order string
	Bytes, DelayLevel       int
	DeliverAtMs             int64
	Properties              map[string]string
}

// Content is the body, or random bytes.
func (m Message) Content() []byte {
	if m.Bytes == 0 {
		return []byte(m.Body)
	}
	content := make([]byte, m.Bytes)
	rand.New(rand.NewSource(0)).Read(content)
	return content
}

// Refused is an answer of the server.
type Refused struct {
	Code int32
	Text string
}

func (r Refused) Error() string {
	return fmt.Sprintf("%d %s", r.Code, r.Text)
}

// Does is what a client can do, by the name of the instruction.
type Does map[string]func(Instruction) (any, error)

// Lines answers instructions until the input ends. What a library prints goes to the error output.
func Lines(does Does) {
	answers := os.Stdout
	os.Stdout = os.Stderr
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, longestLineBytes)
	for lines.Scan() {
		told, err := json.Marshal(answer(does, lines.Bytes()))
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(answers, "%s\n", told)
	}
}

func answer(does Does, line []byte) map[string]any {
	var what Instruction
	if err := json.Unmarshal(line, &what); err != nil {
		panic(err)
	}
	do, known := does[what.Do]
	if !known {
		return map[string]any{"error": "unknown instruction " + what.Do, "code": nil}
	}
	value, err := do(what)
	if refused, isRefused := err.(Refused); isRefused {
		return map[string]any{"error": refused.Error(), "code": refused.Code}
	}
	if err != nil {
		return map[string]any{"error": err.Error(), "code": nil}
	}
	return map[string]any{"value": value}
}

// Seen is a message that was got.
type Seen struct {
	Body        string            `json:"body"`
	Tags        string            `json:"tags"`
	Keys        string            `json:"keys"`
	MsgID       string            `json:"msgId"`
	QueueID     int               `json:"queueId"`
	QueueOffset int64             `json:"queueOffset"`
	Attempt     int32             `json:"attempt"`
	Properties  map[string]string `json:"properties"`
}

// Received is what the consumer of the moment has got.
type Received struct {
	mutex sync.Mutex
	seen  []Seen
}

// Add is called by the threads of consumers.
func (r *Received) Add(one Seen) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.seen = append(r.seen, one)
}

// Clear forgets everything, before another consumer starts.
func (r *Received) Clear() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.seen = nil
}

// Wait follows the instruction "received".
func (r *Received) Wait(what Instruction) (any, error) {
	deadline := time.Now().Add(time.Duration(what.TimeoutMs) * time.Millisecond)
	for {
		r.mutex.Lock()
		seen := append([]Seen{}, r.seen...)
		r.mutex.Unlock()
		if len(seen) >= what.Count || time.Now().After(deadline) {
			return seen, nil
		}
		time.Sleep(20 * time.Millisecond)
	}
}
