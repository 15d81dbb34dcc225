// RocketMQ's remoting client for Go as a program of the matrix: tests/helpers/interop/program.py has the instructions.
// Arguments: the address [access key, secret key].
package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"

	"rmqinterop/follow"
)

const patience = 3 * time.Second

var timeout = follow.Timeout()

var ends = map[string]primitive.LocalTransactionState{
	"commit": primitive.CommitMessageState, "rollback": primitive.RollbackMessageState, "unknown": primitive.UnknowState,
}

type client struct {
	servers   primitive.NamesrvAddr
	keys      primitive.Credentials
	producers map[string]rocketmq.Producer
	received  follow.Received
	checked   atomic.Int64
	instances int
	leave     func() error
}

func main() {
	rlog.SetLogLevel("warn")
	c := &client{servers: primitive.NamesrvAddr{os.Args[1]}, producers: map[string]rocketmq.Producer{}, leave: nothing}
	if len(os.Args) > 2 {
		c.keys = primitive.Credentials{AccessKey: os.Args[2], SecretKey: os.Args[3]}
	}
	follow.Lines(follow.Does{
		"send": c.send, "batch": c.batch, "transaction": c.transaction, "request": c.request, "consume": c.consume,
		"received": c.received.Wait,
		"checked":  func(follow.Instruction) (any, error) { return c.checked.Load(), nil },
		"leave": func(follow.Instruction) (any, error) {
			leave := c.leave
			c.leave = nothing
			return nil, leave()
		},
	})
}

func nothing() error { return nil }

var brokerSaid = regexp.MustCompile(`^CODE: (\d+), DESC: (.*)`)

// refused has the code of the server, which is in the text of the client's error only.
func refused(err error) error {
	told := brokerSaid.FindStringSubmatch(err.Error())
	if told == nil {
		return err
	}
	code, _ := strconv.Atoi(told[1])
	return follow.Refused{Code: int32(code), Text: told[2]}
}

func (c *client) options(group string) []producer.Option {
	return []producer.Option{
		producer.WithGroupName(group), producer.WithInstanceName(group), producer.WithNameServer(c.servers),
		producer.WithCredentials(c.keys), producer.WithSendMsgTimeout(timeout), producer.WithRetry(0),
	}
}

// producer of a kind: one that traces, one that keeps an order, or neither.
func (c *client) producer(kind string, more ...producer.Option) (rocketmq.Producer, error) {
	if made, exists := c.producers[kind]; exists {
		return made, nil
	}
	made, err := rocketmq.NewProducer(append(c.options("pg_"+kind), more...)...)
	if err != nil {
		return nil, err
	}
	c.producers[kind] = made
	return made, made.Start()
}

func (c *client) producerFor(what follow.Instruction) (rocketmq.Producer, error) {
	if what.Trace {
		trace := &primitive.TraceConfig{
			GroupName: "pg_trace", Access: primitive.Local, NamesrvAddrs: c.servers, Credentials: c.keys,
		}
		return c.producer("traced", producer.WithTrace(trace))
	}
	if len(what.Messages) > 0 && what.Messages[0].Order != "" {
		return c.producer("ordered", producer.WithQueueSelector(producer.NewHashQueueSelector()))
	}
	return c.producer("interop")
}

func (c *client) send(what follow.Instruction) (any, error) {
	producer, err := c.producerFor(what)
	if err != nil {
		return nil, err
	}
	places := []any{}
	for _, one := range messages(what) {
		var sent *primitive.SendResult
		switch what.Mode {
		case "one-way":
			err = producer.SendOneWay(context.Background(), one)
		case "async":
			sent, err = sendAsync(producer, one)
		default:
			sent, err = producer.SendSync(context.Background(), one)
		}
		if err != nil {
			return nil, refused(err)
		}
		if sent != nil {
			places = append(places, place(sent))
		}
	}
	return places, nil
}

func sendAsync(producer rocketmq.Producer, one *primitive.Message) (*primitive.SendResult, error) {
	type answer struct {
		sent *primitive.SendResult
		err  error
	}
	answered := make(chan answer, 1)
	err := producer.SendAsync(context.Background(), func(_ context.Context, sent *primitive.SendResult, err error) {
		answered <- answer{sent, err}
	}, one)
	if err != nil {
		return nil, err
	}
	got := <-answered
	return got.sent, got.err
}

func (c *client) batch(what follow.Instruction) (any, error) {
	producer, err := c.producerFor(what)
	if err != nil {
		return nil, err
	}
	sent, err := producer.SendSync(context.Background(), messages(what)...)
	if err != nil {
		return nil, err
	}
	return []any{place(sent)}, nil
}

func (c *client) request(what follow.Instruction) (any, error) {
	producer, err := c.producerFor(what)
	if err != nil {
		return nil, err
	}
	// A producer tells the server of itself a second after its first message; until then no reply finds it.
	for deadline := time.Now().Add(timeout); ; {
		reply, err := producer.Request(context.Background(), patience, messages(what)[0])
		if err == nil {
			return string(reply.Body), nil
		}
		if time.Now().After(deadline) {
			return nil, err
		}
	}
}

type listener struct {
	client     *client
	end, check string
}

func (l *listener) ExecuteLocalTransaction(*primitive.Message) primitive.LocalTransactionState {
	return ends[l.end]
}

func (l *listener) CheckLocalTransaction(*primitive.MessageExt) primitive.LocalTransactionState {
	l.client.checked.Add(1)
	return ends[l.check]
}

func (c *client) transaction(what follow.Instruction) (any, error) {
	// The producer stays: the server asks it. One client has one producer of a group, and each instance is a client.
	c.instances++
	options := append(c.options(what.Group), producer.WithInstanceName(fmt.Sprintf("instance%d", c.instances)))
	producer, err := rocketmq.NewTransactionProducer(&listener{c, what.End, what.Check}, options...)
	if err != nil {
		return nil, err
	}
	if err := producer.Start(); err != nil {
		return nil, err
	}
	sent, err := producer.SendMessageInTransaction(context.Background(), messages(what)[0])
	if err != nil {
		return nil, err
	}
	return []any{place(sent.SendResult)}, nil
}

func messages(what follow.Instruction) []*primitive.Message {
	made := []*primitive.Message{}
	for _, one := range what.Messages {
		message := primitive.NewMessage(what.Topic, one.Content())
		message.WithTag(one.Tags)
		message.WithShardingKey(one.Order)
		if one.Keys != "" {
			message.WithKeys(strings.Fields(one.Keys))
		}
		if one.DelayLevel != 0 {
			message.WithDelayTimeLevel(one.DelayLevel)
		}
		if one.DeliverAtMs != 0 { // the library has no method for it
			message.WithProperty("TIMER_DELIVER_MS", strconv.FormatInt(one.DeliverAtMs, 10))
		}
		for name, value := range one.Properties {
			message.WithProperty(name, value)
		}
		made = append(made, message)
	}
	return made
}

func place(sent *primitive.SendResult) map[string]any {
	return map[string]any{
		"status": sent.Status, "msgId": sent.MsgID, "offsetMsgId": sent.OffsetMsgID, "queueOffset": sent.QueueOffset,
		"queueId": sent.MessageQueue.QueueId,
	}
}

func (c *client) consume(what follow.Instruction) (any, error) {
	c.received.Clear()
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
	if what.SQL != "" {
		selector = consumer.MessageSelector{Type: consumer.SQL92, Expression: what.SQL}
	} else if what.Tags != "" {
		selector.Expression = what.Tags
	}
	options := []consumer.Option{
		consumer.WithGroupName(what.Group), consumer.WithInstance(what.Group), consumer.WithNameServer(c.servers),
		consumer.WithCredentials(c.keys), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(what.Mode == "ordered"),
	}
	if what.Mode == "broadcast" {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if what.Mode == "lite" {
		return nil, c.poll(what.Topic, selector, options)
	}
	member, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return nil, err
	}
	listen := func(_ context.Context, found ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, one := range found {
			if what.Replies {
				c.reply(one)
			}
			c.received.Add(seen(one))
		}
		if what.Fails {
			return consumer.ConsumeRetryLater, nil
		}
		return consumer.ConsumeSuccess, nil
	}
	if err := member.Subscribe(what.Topic, selector, listen); err != nil {
		return nil, err
	}
	c.leave = member.Shutdown
	return nil, member.Start()
}

func (c *client) poll(topic string, selector consumer.MessageSelector, options []consumer.Option) error {
	poller, err := rocketmq.NewPullConsumer(options...)
	if err != nil {
		return err
	}
	if err := poller.Subscribe(topic, selector); err != nil {
		return err
	}
	var isOver atomic.Bool
	ended := make(chan bool, 1)
	go func() {
		for !isOver.Load() {
			polled, err := poller.Poll(context.Background(), 200*time.Millisecond)
			if err != nil {
				continue // there is no message
			}
			for _, one := range polled.GetMsgList() {
				c.received.Add(seen(one))
			}
			poller.ACK(context.Background(), polled, consumer.ConsumeSuccess)
		}
		ended <- true
	}()
	c.leave = func() error {
		isOver.Store(true)
		<-ended
		return poller.Shutdown()
	}
	return poller.Start()
}

func (c *client) reply(asked *primitive.MessageExt) {
	body := append([]byte("reply to "), asked.Body...)
	answer, err := consumer.CreateReplyMessage(asked, body)
	if err != nil {
		panic(err)
	}
	answer.Body = body // the client reads the body as properties
	replier, err := c.producer("interop")
	if err != nil {
		panic(err)
	}
	if _, err := replier.SendSync(context.Background(), answer); err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
	}
}

func seen(message *primitive.MessageExt) follow.Seen {
	return follow.Seen{
		Body: string(message.Body), Tags: message.GetTags(), Keys: message.GetKeys(), MsgID: message.MsgId,
		QueueID: message.Queue.QueueId, QueueOffset: message.QueueOffset, Attempt: message.ReconsumeTimes + 1,
		Properties: message.GetProperties(),
	}
}
