package dynamoaudit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/audit"
	"github.com/coordsvc/coordsvc/internal/audit/audittest"
	"github.com/coordsvc/coordsvc/internal/audit/dynamoaudit"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/internal/dynamo/dynamotest"
	"github.com/coordsvc/coordsvc/internal/seal"
	"github.com/coordsvc/coordsvc/keytype"
)

// open makes an empty table and a store on it.
func open(t *testing.T, options ...func(*dynamodb.Options)) (store *dynamoaudit.Store, client *dynamodb.Client, prefix string) {
	t.Helper()
	e := engine.DynamoDB(t)
	client, prefix = e.Client(), e.Prefix(t)
	if err := dynamo.Create(t.Context(), client, dynamoaudit.Table(prefix)); err != nil {
		t.Fatal(err)
	}
	return dynamoaudit.New(e.Client(options...), prefix), client, prefix
}

func items(t *testing.T, client *dynamodb.Client, prefix string) []dynamo.Item {
	t.Helper()
	out, err := client.Scan(t.Context(), &dynamodb.ScanInput{TableName: aws.String(keytype.AuditEvent.TableName(prefix))})
	if err != nil {
		t.Fatal(err)
	}
	return out.Items
}

func TestDynamoStore(t *testing.T) {
	audittest.Run(t, func(t *testing.T) audit.Store {
		store, _, _ := open(t)
		return store
	})
}

// pages makes every page of a query one item long.
type pages struct{ *dynamodb.Client }

func (p pages) Query(ctx context.Context, in *dynamodb.QueryInput, options ...func(*dynamodb.Options)) (*dynamodb.QueryOutput, error) {
	in.Limit = aws.Int32(1)
	return p.Client.Query(ctx, in, options...)
}

func TestSmallPages(t *testing.T) {
	audittest.Run(t, func(t *testing.T) audit.Store {
		_, client, prefix := open(t)
		return dynamoaudit.New(pages{client}, prefix)
	})
}

// noOld is an engine that never hands out the item of a failed condition.
type noOld struct{ *dynamodb.Client }

func (c noOld) PutItem(ctx context.Context, in *dynamodb.PutItemInput, options ...func(*dynamodb.Options)) (*dynamodb.PutItemOutput, error) {
	in.ReturnValuesOnConditionCheckFailure = ""
	return c.Client.PutItem(ctx, in, options...)
}

func TestEngineWithoutOldItems(t *testing.T) {
	audittest.Run(t, func(t *testing.T) audit.Store {
		_, client, prefix := open(t)
		return dynamoaudit.New(noOld{client}, prefix)
	})
}

// L52: a busy tenant writes under several partition keys at once, and others in
// every month, all of them ones that the registry's type made.
func TestL52PartitionKeys(t *testing.T) {
	store, client, prefix := open(t)
	m := audit.New(store, mustSealer(t), audit.Options{Now: func() time.Time { return audittest.Epoch }})
	for range 16 { // within a millisecond
		if err := m.Record(t.Context(), audit.Event{Tenant: "a", Actor: "k", Action: audit.Create, Outcome: audit.OK}); err != nil {
			t.Fatal(err)
		}
	}
	events := map[string]int{}
	for _, it := range items(t, client, prefix) {
		pk := dynamo.Read(it, 1).Str("pk")
		if _, ok := keytype.AuditEvent.Split(pk); !ok {
			t.Errorf("%q is not the type's", pk)
		}
		events[pk]++
	}
	if len(events) != 8 || events[keytype.AuditEvent.Key("a", "2026-11.0")] != 2 {
		t.Errorf("events by partition key: %v; want two under each of eight", events)
	}
	later := audittest.Event("a", audittest.ID(audittest.Epoch.AddDate(0, 0, 2), 0)) // of December
	if err := store.Append(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	for _, it := range items(t, client, prefix) {
		if pk := dynamo.Read(it, 1).Str("pk"); events[pk] == 0 && pk != keytype.AuditEvent.Key("a", "2026-12.0") {
			t.Errorf("the next month's event is under %q", pk)
		}
	}
}

// The attribute by which DynamoDB removes an event is not before its retention's end.
func TestTimeToLive(t *testing.T) {
	store, client, prefix := open(t)
	e := audittest.Event("a", audittest.ID(audittest.Epoch, 1))
	if err := store.Append(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	end := e.At().Add(audit.Retention)
	for _, it := range items(t, client, prefix) {
		removed := time.Unix(dynamo.Read(it, 1).Int("ttl"), 0)
		if removed.Before(end) || removed.After(end.Add(time.Second)) {
			t.Errorf("removed at %v, want %v or a second later", removed, end)
		}
	}
	out, err := client.DescribeTimeToLive(t.Context(), &dynamodb.DescribeTimeToLiveInput{TableName: aws.String(keytype.AuditEvent.TableName(prefix))})
	if err != nil || aws.ToString(out.TimeToLiveDescription.AttributeName) != "ttl" {
		t.Errorf("TTL of the table: %+v, %v", out, err)
	}
}

// L35: no request names an attribute bare, which may be a reserved word; and
// every read is strongly consistent, which no engine shows by itself.
func TestL35Requests(t *testing.T) {
	wire := &dynamotest.Wire{}
	store, _, _ := open(t, wire.Option)
	e := audittest.Event("a", audittest.ID(audittest.Epoch, 1))
	bound := audit.FirstID(audittest.Epoch.Add(time.Second))
	for _, step := range []struct {
		why    string
		do     func() error
		writes int
		reads  int
	}{
		{"an append", func() error { return store.Append(t.Context(), e) }, 1, 0},
		{"a page within a month asks each shard", func() error {
			_, err := store.Page(t.Context(), "a", e.ID, bound, 1)
			return err
		}, 0, 8},
		{"without events, each shard of each month", func() error {
			_, err := store.Page(t.Context(), "b", audit.FirstID(audittest.Epoch.Add(-audit.Retention)), bound, 1)
			return err
		}, 0, 8 * 14},
		{"the first month that fills the page is the last", func() error {
			_, err := store.Page(t.Context(), "a", audit.FirstID(audittest.Epoch.Add(-audit.Retention)), bound, 1)
			return err
		}, 0, 8},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		writes, reads := 0, 0
		for _, r := range wire.Take() {
			if bare := r.BareNames(); len(bare) > 0 {
				t.Errorf("%s: %s names %v", step.why, r.Operation, bare)
			}
			switch {
			case r.Operation == "PutItem":
				writes++
			case r.Operation == "Query" && r.Body["ConsistentRead"] == true:
				reads++
			default:
				t.Errorf("%s: %s %v", step.why, r.Operation, r.Body)
			}
		}
		if writes != step.writes || reads != step.reads {
			t.Errorf("%s: %d writes and %d reads, want %d and %d", step.why, writes, reads, step.writes, step.reads)
		}
	}
}

func TestAnotherFormatIsRefused(t *testing.T) {
	store, client, prefix := open(t)
	e := audittest.Event("a", audittest.ID(audittest.Epoch, 1))
	if err := store.Append(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	it := items(t, client, prefix)[0]
	it["v"] = dynamo.N(2)
	if _, err := client.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: aws.String(keytype.AuditEvent.TableName(prefix)), Item: it}); err != nil {
		t.Fatal(err)
	}
	audittest.ExpectRefused(t, store, e)
}

// An append whose answer is lost is sent again, by the SDK or by the manager,
// and meets itself: one event.
func TestLostAnswer(t *testing.T) {
	event := audit.Event{Tenant: "a", Actor: "k", Action: audit.Disable, Subject: "ann", Outcome: audit.OK}
	for name, retryer := range map[string]aws.Retryer{"SDK": retry.NewStandard(), "manager": aws.NopRetryer{}} {
		t.Run(name, func(t *testing.T) {
			var sent atomic.Int64
			store, client, prefix := open(t, through(func(send func() (*http.Response, error)) (*http.Response, error) {
				resp, err := send()
				if err == nil && sent.Add(1) == 1 {
					_ = resp.Body.Close()
					return nil, errors.New("the answer was lost")
				}
				return resp, err
			}), func(o *dynamodb.Options) { o.Retryer = retryer })
			if err := audit.New(store, mustSealer(t), audit.Options{}).Record(t.Context(), event); err != nil {
				t.Error(err)
			}
			if n := len(items(t, client, prefix)); n != 1 || sent.Load() != 2 {
				t.Errorf("%d events after %d requests, want 1 after 2", n, sent.Load())
			}
		})
	}
}

// L32: a throttle or an outage is never an empty log, nor an event that was stored.
func TestL32Unavailable(t *testing.T) {
	cases := []struct {
		name   string
		code   string
		append error
	}{
		{"throttled", "ProvisionedThroughputExceededException", keytype.ErrUnavailable},
		{"no answer", "", keytype.ErrOutcomeUnknown},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			store, _, _ := open(t, through(func(func() (*http.Response, error)) (*http.Response, error) {
				if c.code == "" {
					return nil, errors.New("the answer was lost")
				}
				body := fmt.Sprintf(`{"__type":"com.amazonaws.dynamodb.v20120810#%s"}`, c.code)
				return &http.Response{StatusCode: 400, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}, nil
			}))
			if err := store.Append(t.Context(), audittest.Event("a", audittest.ID(audittest.Epoch, 1))); !errors.Is(err, c.append) {
				t.Errorf("append: %v", err)
			}
			m := audit.New(store, mustSealer(t), audit.Options{Now: func() time.Time { return audittest.Epoch }})
			if page, err := m.List(t.Context(), "a", "", 0); !errors.Is(err, keytype.ErrUnavailable) {
				t.Errorf("list: %+v, %v", page, err)
			}
			err := m.Record(t.Context(), audit.Event{Tenant: "a", Actor: "k", Action: audit.Disable, Outcome: audit.OK})
			if e, ok := errors.AsType[*audit.UnrecordedError](err); !ok || !errors.Is(err, c.append) || e.Event.Action != audit.Disable {
				t.Errorf("record: %v", err)
			}
		})
	}
}

// S38: no spelling of a token is in the table, however it came into the event.
func TestS38CanaryIsNotInTheTable(t *testing.T) {
	const canary = "cst_0123456789abcdefghijCANARYcanaryCANARYcanary"
	store, client, prefix := open(t)
	m := audit.New(store, mustSealer(t), audit.Options{})
	for _, e := range []audit.Event{
		{Reason: "leaked in chat: " + canary},
		{Subject: canary},
		{RequestID: canary},
		{Actor: "csk_" + canary},
	} {
		e.Tenant, e.Action, e.Outcome = "a", audit.Revoke, audit.OK
		if e.Actor == "" {
			e.Actor = "key_0"
		}
		if err := m.Record(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	page, err := m.List(t.Context(), "a", "", 2)
	if err != nil || len(page.Events) != 2 || page.Next == "" {
		t.Fatalf("%+v, %v", page, err)
	}
	var said bytes.Buffer
	slog.New(slog.NewJSONHandler(&said, nil)).Error("x", "page", page, "event", page.Events[0])
	for _, it := range items(t, client, prefix) {
		coded, err := json.Marshal(it)
		if err != nil {
			t.Fatal(err)
		}
		said.Write(coded)
	}
	if text := said.String(); !strings.Contains(text, "leaked in chat: cst_[redacted]") || strings.Contains(strings.ToLower(text), "canary") {
		t.Errorf("the table and the log hold %s", text)
	}
}

func mustSealer(t *testing.T) *seal.Sealer {
	t.Helper()
	s, err := seal.New([][]byte{bytes.Repeat([]byte{1}, seal.KeySize)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// through puts do between the client and the engine.
func through(do func(send func() (*http.Response, error)) (*http.Response, error)) func(*dynamodb.Options) {
	return func(o *dynamodb.Options) {
		next := o.HTTPClient
		o.HTTPClient = clientFunc(func(r *http.Request) (*http.Response, error) {
			return do(func() (*http.Response, error) { return next.Do(r) })
		})
	}
}

type clientFunc func(*http.Request) (*http.Response, error)

func (f clientFunc) Do(r *http.Request) (*http.Response, error) { return f(r) }
