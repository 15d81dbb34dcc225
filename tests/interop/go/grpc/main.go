// RocketMQ's gRPC client for Go as a program of the matrix: tests/helpers/interop/program.py has the instructions.
// Arguments: the address [access key, secret key].
package main

import (
	"context"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"

	"rmqinterop/follow"
)

const (
	invisible = 30 * time.Second
	wait      = 5 * time.Second
	batch     = 16
)

var (
	timeout  = follow.Timeout()
	codeName = regexp.MustCompile(`CODE: (\w+), MESSAGE: `)
)

var ends = map[string]rocketmq.TransactionResolution{
	"commit": rocketmq.COMMIT, "rollback": rocketmq.ROLLBACK, "unknown": rocketmq.UNKNOWN,
}

type client struct {
	address   string
	keys      *credentials.SessionCredentials
	producers map[string]rocketmq.Producer
	received  follow.Received
	checked   atomic.Int64
	leave     func()
}

func main() {
	_, rocketmq.EnableSsl = os.LookupEnv("CLIENT_TLS")
	c := &client{address: os.Args[1], producers: map[string]rocketmq.Producer{}, leave: func() {}}
	if len(os.Args) > 2 {
		c.keys = &credentials.SessionCredentials{AccessKey: os.Args[2], AccessSecret: os.Args[3]}
	}
	follow.Lines(follow.Does{
		"send": c.send, "recall": c.recall, "transaction": c.transaction, "consume": c.consume, "received": c.received.Wait,
		"checked": func(follow.Instruction) (any, error) { return c.checked.Load(), nil },
		"leave": func(follow.Instruction) (any, error) {
			c.leave()
			c.leave = func() {}
			return nil, nil
		},
	})
}

func (c *client) configuration(group string) *rocketmq.Config {
	return &rocketmq.Config{Endpoint: c.address, ConsumerGroup: group, Credentials: c.keys}
}

// refused has the code of the server. At the start of a client its error has that in the text only.
func refused(err error) error {
	if status, isStatus := rocketmq.AsErrRpcStatus(err); isStatus {
		return follow.Refused{Code: status.Code, Text: status.Message}
	}
	if err == nil {
		return nil
	}
	if name := codeName.FindStringSubmatch(err.Error()); name != nil {
		return follow.Refused{Code: v2.Code_value[name[1]], Text: err.Error()}
	}
	return err
}

func (c *client) producer(topic string) (rocketmq.Producer, error) {
	if made, exists := c.producers[topic]; exists {
		return made, nil
	}
	made, err := c.start(rocketmq.WithTopics(topic), rocketmq.WithMaxAttempts(1))
	if err == nil {
		c.producers[topic] = made
	}
	return made, err
}

func (c *client) start(options ...rocketmq.ProducerOption) (rocketmq.Producer, error) {
	made, err := rocketmq.NewProducer(c.configuration(""), options...)
	if err != nil {
		return nil, err
	}
	made.SetRequestTimeout(timeout)
	return made, made.Start()
}

func (c *client) send(what follow.Instruction) (any, error) {
	producer, err := c.producer(what.Topic)
	if err != nil {
		return nil, refused(err)
	}
	places := []any{}
	for _, one := range what.Messages {
		var sent []*rocketmq.SendReceipt
		if what.Mode == "async" {
			var answered sync.WaitGroup
			answered.Add(1)
			producer.SendAsync(context.Background(), message(what.Topic, one),
				func(_ context.Context, receipts []*rocketmq.SendReceipt, failure error) {
					sent, err = receipts, failure
					answered.Done()
				})
			answered.Wait()
		} else {
			sent, err = producer.Send(context.Background(), message(what.Topic, one))
		}
		if err != nil {
			return nil, refused(err)
		}
		places = append(places, place(sent[0]))
	}
	return places, nil
}

func (c *client) recall(what follow.Instruction) (any, error) {
	producer, err := c.producer(what.Topic)
	if err != nil {
		return nil, refused(err)
	}
	taken, err := producer.Recall(context.Background(), what.Topic, what.Handle)
	return taken, refused(err)
}

func (c *client) transaction(what follow.Instruction) (any, error) {
	checker := rocketmq.TransactionChecker{Check: func(*rocketmq.MessageView) rocketmq.TransactionResolution {
		c.checked.Add(1)
		return ends[what.Check]
	}}
	// The producer stays: the server asks it.
	producer, err := c.start(rocketmq.WithTopics(what.Topic), rocketmq.WithTransactionChecker(&checker))
	if err != nil {
		return nil, refused(err)
	}
	transaction := producer.BeginTransaction()
	sent, err := producer.SendWithTransaction(context.Background(), message(what.Topic, what.Messages[0]), transaction)
	if err != nil {
		return nil, refused(err)
	}
	switch what.End {
	case "commit":
		err = transaction.Commit()
	case "rollback":
		err = transaction.RollBack()
	}
	return []any{place(sent[0])}, refused(err)
}

func message(topic string, one follow.Message) *rocketmq.Message {
	made := &rocketmq.Message{Topic: topic, Body: one.Content()}
	if one.Tags != "" {
		made.SetTag(one.Tags)
	}
	if one.Keys != "" {
		made.SetKeys(one.Keys)
	}
	if one.Order != "" {
		made.SetMessageGroup(one.Order)
	}
	if one.DeliverAtMs != 0 {
		made.SetDelayTimestamp(time.UnixMilli(one.DeliverAtMs))
	}
	for name, value := range one.Properties {
		made.AddProperty(name, value)
	}
	return made
}

func place(sent *rocketmq.SendReceipt) map[string]any {
	return map[string]any{"status": "OK", "msgId": sent.MessageID, "recallHandle": sent.RecallHandle}
}

func (c *client) consume(what follow.Instruction) (any, error) {
	c.received.Clear()
	filter := rocketmq.SUB_ALL
	if what.SQL != "" {
		filter = rocketmq.NewFilterExpressionWithType(what.SQL, rocketmq.SQL92)
	} else if what.Tags != "" {
		filter = rocketmq.NewFilterExpression(what.Tags)
	}
	subscription := map[string]*rocketmq.FilterExpression{what.Topic: filter}
	if what.Mode == "simple" {
		return nil, refused(c.poll(what.Group, subscription))
	}
	result := rocketmq.SUCCESS
	if what.Fails {
		result = rocketmq.FAILURE
	}
	consumer, err := rocketmq.NewPushConsumer(c.configuration(what.Group),
		rocketmq.WithPushAwaitDuration(wait), rocketmq.WithPushSubscriptionExpressions(subscription),
		rocketmq.WithPushMessageListener(&rocketmq.FuncMessageListener{
			Consume: func(view *rocketmq.MessageView) rocketmq.ConsumerResult {
				c.received.Add(seen(view))
				return result
			},
		}))
	if err != nil {
		return nil, err
	}
	consumer.SetRequestTimeout(timeout)
	// It counts a request that found no message as one that still runs, and waits for it.
	c.leave = func() { go consumer.GracefulStop() }
	return nil, refused(consumer.Start())
}

func (c *client) poll(group string, subscription map[string]*rocketmq.FilterExpression) error {
	consumer, err := rocketmq.NewSimpleConsumer(c.configuration(group),
		rocketmq.WithSimpleAwaitDuration(wait), rocketmq.WithSimpleSubscriptionExpressions(subscription))
	if err != nil {
		return err
	}
	consumer.SetRequestTimeout(timeout)
	if err := consumer.Start(); err != nil {
		return err
	}
	var isOver atomic.Bool
	ended := make(chan error, 1)
	go func() {
		for !isOver.Load() {
			views, err := consumer.Receive(context.Background(), batch, invisible)
			status, isStatus := rocketmq.AsErrRpcStatus(err)
			if err != nil && !(isStatus && status.Code == int32(v2.Code_MESSAGE_NOT_FOUND)) {
				os.Stderr.WriteString(err.Error() + "\n")
			}
			for _, view := range views {
				c.received.Add(seen(view))
				if err := consumer.Ack(context.Background(), view); err != nil {
					os.Stderr.WriteString(err.Error() + "\n")
				}
			}
		}
		ended <- consumer.GracefulStop()
	}()
	c.leave = func() {
		isOver.Store(true)
		<-ended
	}
	return nil
}

func seen(view *rocketmq.MessageView) follow.Seen {
	one := follow.Seen{
		Body: string(view.GetBody()), Keys: strings.Join(view.GetKeys(), " "), MsgID: view.GetMessageId(),
		QueueOffset: view.GetOffset(), Attempt: view.GetDeliveryAttempt(), Properties: view.GetProperties(),
	}
	if tag := view.GetTag(); tag != nil {
		one.Tags = *tag
	}
	return one
}
