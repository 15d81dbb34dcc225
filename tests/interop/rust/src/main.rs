//! RocketMQ's gRPC client for Rust as a program of the matrix: tests/helpers/interop/program.py has the instructions.
//! Arguments: the address [access key, secret key].

use std::collections::HashMap;
use std::io::stdin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType, SendReceipt};
use rocketmq::model::message::{Message, MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};
use tokio::task::JoinHandle;
use tokio::time::sleep;

const TIMEOUT_MS: u64 = 20_000;
const WAIT: Duration = Duration::from_secs(5);
const INVISIBLE: Duration = Duration::from_secs(30);
const BATCH: i32 = 16;

type Received = Arc<Mutex<Vec<Value>>>;

struct Client {
    options: ClientOption,
    producers: HashMap<String, Arc<Producer>>,
    asked: Vec<Producer>,
    received: Received,
    checked: Arc<AtomicU64>,
    polling: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let mut options = ClientOption::default();
    options.set_access_url(arguments[1].clone());
    let timeout_ms = std::env::var("CLIENT_TIMEOUT_MS").map_or(TIMEOUT_MS, |told| told.parse().unwrap());
    options.set_timeout(Duration::from_millis(timeout_ms));
    options.set_long_polling_timeout(WAIT);
    if arguments.len() > 2 {
        options.set_access_key(arguments[2].clone());
        options.set_secret_key(arguments[3].clone());
    }
    let mut client = Client {
        options,
        producers: HashMap::new(),
        asked: Vec::new(),
        received: Received::default(),
        checked: Arc::default(),
        polling: None,
    };
    for line in stdin().lines() {
        let what: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let answer = match client.follow(&what).await {
            Ok(value) => json!({ "value": value }),
            Err(error) => json!({ "error": error.to_string(), "code": code(&error) }),
        };
        println!("{answer}");
    }
}

impl Client {
    async fn follow(&mut self, what: &Value) -> Result<Value, ClientError> {
        match text(what, "do") {
            "send" => self.send(what).await,
            "batch" => self.batch(what).await,
            "transaction" => self.transaction(what).await,
            "checked" => Ok(json!(self.checked.load(Ordering::SeqCst))),
            "consume" => self.consume(what).await,
            "received" => Ok(self.wait(what).await),
            "leave" => {
                if let Some((is_over, polling)) = self.polling.take() {
                    is_over.store(true, Ordering::SeqCst);
                    polling.await.unwrap();
                }
                Ok(Value::Null)
            }
            unknown => panic!("unknown instruction {unknown}"),
        }
    }

    async fn producer(&mut self, topic: &str) -> Result<Arc<Producer>, ClientError> {
        if let Some(made) = self.producers.get(topic) {
            return Ok(made.clone());
        }
        let mut made = Producer::new(producing(topic), self.options.clone())?;
        made.start().await?;
        let made = Arc::new(made);
        self.producers.insert(topic.to_string(), made.clone());
        Ok(made)
    }

    async fn send(&mut self, what: &Value) -> Result<Value, ClientError> {
        let topic = text(what, "topic");
        let producer = self.producer(topic).await?;
        let mut places = Vec::new();
        let mut sends = Vec::new();
        for one in what["messages"].as_array().unwrap() {
            let (message, sender) = (message(topic, one)?, producer.clone());
            if text(what, "mode") == "async" {
                sends.push(tokio::spawn(async move { sender.send(message).await }));
            } else {
                places.push(place(&sender.send(message).await?));
            }
        }
        for send in sends {
            places.push(place(&send.await.unwrap()?));
        }
        Ok(json!(places))
    }

    async fn batch(&mut self, what: &Value) -> Result<Value, ClientError> {
        let topic = text(what, "topic");
        let mut messages = Vec::new();
        for one in what["messages"].as_array().unwrap() {
            messages.push(message(topic, one)?);
        }
        let sent = self.producer(topic).await?.batch_send(messages).await?;
        let ids: Vec<&str> = sent.iter().map(SendReceipt::message_id).collect();
        Ok(json!([{ "status": "OK", "msgId": ids.join(",") }]))
    }

    async fn transaction(&mut self, what: &Value) -> Result<Value, ClientError> {
        let (topic, check, checked) = (
            text(what, "topic"),
            text(what, "check").to_string(),
            self.checked.clone(),
        );
        let checker = move |_: String, _: MessageView| {
            checked.fetch_add(1, Ordering::SeqCst);
            resolution(&check)
        };
        let mut producer =
            Producer::new_transaction_producer(producing(topic), self.options.clone(), Box::new(checker))?;
        producer.start().await?;
        let body = text(&what["messages"][0], "body").as_bytes().to_vec();
        let message = MessageBuilder::transaction_message_builder(topic, body).build()?;
        let transaction = producer.send_transaction_message(message).await?;
        let place = json!({ "status": "OK", "msgId": transaction.message_id() });
        match text(what, "end") {
            "commit" => transaction.commit().await?,
            "rollback" => transaction.rollback().await?,
            _ => {}
        }
        self.asked.push(producer); // it stays: the server asks it
        Ok(json!([place]))
    }

    async fn consume(&mut self, what: &Value) -> Result<Value, ClientError> {
        self.received.lock().unwrap().clear();
        let topic = text(what, "topic").to_string();
        let filter = match (text(what, "sql"), text(what, "tags")) {
            ("", "") => FilterExpression::new(FilterType::Tag, "*"),
            ("", tags) => FilterExpression::new(FilterType::Tag, tags),
            (sql, _) => FilterExpression::new(FilterType::Sql, sql),
        };
        let mut option = SimpleConsumerOption::default();
        option.set_consumer_group(text(what, "group"));
        option.set_topics(vec![topic.clone()]);
        let mut consumer = SimpleConsumer::new(option, self.options.clone())?;
        consumer.start().await?;
        let fails = what["fails"].as_bool().unwrap_or(false);
        let (is_over, received) = (Arc::new(AtomicBool::new(false)), self.received.clone());
        let ends = is_over.clone();
        let polling = tokio::spawn(async move {
            while !ends.load(Ordering::SeqCst) {
                if let Err(error) = poll(&consumer, &topic, &filter, &received, fails).await {
                    eprintln!("{error}");
                }
            }
            if let Err(error) = consumer.shutdown().await {
                eprintln!("{error}");
            }
        });
        self.polling = Some((is_over, polling));
        Ok(Value::Null)
    }

    async fn wait(&self, what: &Value) -> Value {
        let deadline = Instant::now() + Duration::from_millis(what["timeoutMs"].as_u64().unwrap());
        let count = what["count"].as_u64().unwrap() as usize;
        while self.received.lock().unwrap().len() < count && Instant::now() < deadline {
            sleep(Duration::from_millis(20)).await;
        }
        json!(*self.received.lock().unwrap())
    }
}

/// A message that `fails` is not acknowledged: the client has no other way.
async fn poll(
    consumer: &SimpleConsumer,
    topic: &str,
    filter: &FilterExpression,
    received: &Received,
    fails: bool,
) -> Result<(), ClientError> {
    for got in consumer.receive_with(topic, filter, BATCH, INVISIBLE).await? {
        received.lock().unwrap().push(seen(&got));
        if !fails {
            consumer.ack(&got).await?;
        }
    }
    Ok(())
}

fn producing(topic: &str) -> ProducerOption {
    let mut option = ProducerOption::default();
    option.set_topics(vec![topic]);
    option
}

fn resolution(end: &str) -> TransactionResolution {
    match end {
        "commit" => TransactionResolution::COMMIT,
        "rollback" => TransactionResolution::ROLLBACK,
        _ => TransactionResolution::UNKNOWN,
    }
}

fn message(topic: &str, one: &Value) -> Result<impl Message + 'static, ClientError> {
    let body = match one["bytes"].as_u64() {
        Some(count) => (0..count).map(|number| (number * 31 % 251) as u8).collect(),
        None => text(one, "body").as_bytes().to_vec(),
    };
    let mut builder = MessageBuilder::builder().set_topic(topic).set_body(body);
    if !text(one, "tags").is_empty() {
        builder = builder.set_tag(text(one, "tags"));
    }
    if !text(one, "keys").is_empty() {
        builder = builder.set_keys(vec![text(one, "keys")]);
    }
    if !text(one, "order").is_empty() {
        builder = builder.set_message_group(text(one, "order"));
    }
    if let Some(due_ms) = one["deliverAtMs"].as_i64() {
        builder = builder.set_delivery_timestamp(due_ms / 1000);
    }
    if let Some(properties) = one["properties"].as_object() {
        let pairs = properties
            .iter()
            .map(|(name, value)| (name.clone(), value.as_str().unwrap()));
        builder = builder.set_properties(pairs.collect::<HashMap<_, _>>());
    }
    builder.build()
}

fn place(sent: &SendReceipt) -> Value {
    json!({ "status": "OK", "msgId": sent.message_id() })
}

fn seen(got: &MessageView) -> Value {
    json!({
        "body": String::from_utf8_lossy(got.body()), "tags": got.tag(), "keys": got.keys().join(" "),
        "msgId": got.message_id(), "attempt": got.delivery_attempt(), "properties": got.properties(),
    })
}

/// The name of the server's code.
fn code(error: &ClientError) -> Option<&str> {
    let mut context = error.context().iter();
    context
        .find(|(name, _)| *name == "code")
        .map(|(_, value)| value.as_str())
}

/// A field of an instruction, or "".
fn text<'a>(what: &'a Value, name: &str) -> &'a str {
    what[name].as_str().unwrap_or("")
}
