package dynamoquota_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/internal/dynamo/dynamotest"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/quota"
	"github.com/coordsvc/coordsvc/quota/dynamoquota"
	"github.com/coordsvc/coordsvc/quota/quotatest"
)

// A bench is a manager whose requests go over a wire, and one beside it, of
// another process, whose requests do not.
type bench struct {
	*testing.T
	wire   *dynamotest.Wire
	quotas *quota.Manager
	others *quota.Manager
	direct *dynamodb.Client
	prefix string
	now    time.Time
}

var id = quota.ID{Tenant: "t", Name: "n", Subject: "s"}

// newBench sets a quota of 100 units.
func newBench(t *testing.T) *bench {
	e := engine.DynamoDB(t)
	b := &bench{T: t, wire: &dynamotest.Wire{}, direct: e.Client(), prefix: e.Prefix(t), now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	options := quota.Options{Now: func() time.Time { return b.now }}
	b.others = quota.New(open(t, b.direct, b.prefix), options)
	b.quotas = quota.New(dynamoquota.New(e.Client(b.wire.Option), b.prefix), options)
	b.limit(100)
	b.wire.Take()
	return b
}

func (b *bench) limit(units int64) {
	b.Helper()
	if _, err := b.others.Set(b.Context(), id, quota.Definition{Limit: units, Window: quota.None}); err != nil {
		b.Fatal(err)
	}
}

// use has the other process consume units.
func (b *bench) use(amount int64, requestID string) {
	b.Helper()
	if _, err := b.others.Consume(b.Context(), id, amount, requestID); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) reserve(amount int64, requestID string) string {
	b.Helper()
	g, err := b.others.Reserve(b.Context(), id, quota.ReserveRequest{Amount: amount, RequestID: requestID, TTL: time.Second})
	if err != nil {
		b.Fatal(err)
	}
	return g.Reservation
}

// holds demands what is stored: available, reserved, used.
func (b *bench) holds(why string, available, reserved, used int64) {
	b.Helper()
	q, err := b.others.Get(b.Context(), id)
	if err != nil || q.Available != available || q.Reserved != reserved || q.Used != used {
		b.Errorf("%s: stored is %+v, %v, want %d + %d + %d", why, q, err, available, reserved, used)
	}
}

// sent demands which requests went over the wire since it was last called.
func (b *bench) sent(why string, want ...string) []dynamotest.Request {
	b.Helper()
	requests := b.wire.Take()
	var got []string
	for _, r := range requests {
		got = append(got, r.Operation)
	}
	if !slices.Equal(got, want) {
		b.Errorf("%s: sent %v, want %v", why, got, want)
	}
	return requests
}

// steps are one of each kind that writes. Each is done once whatever happens on
// the way; check says whether it was.
var steps = []struct {
	name  string
	setUp func(*bench) string
	do    func(b *bench, reservation string) (quota.Quota, error)
	check func(b *bench, why string, done bool)
}{
	{
		"consume", func(*bench) string { return "" },
		func(b *bench, _ string) (quota.Quota, error) { return b.quotas.Consume(b.Context(), id, 7, "q") },
		func(b *bench, why string, done bool) { b.holds(why, 100-7*one(done), 0, 7*one(done)) },
	},
	{
		"reserve", func(*bench) string { return "" },
		func(b *bench, _ string) (quota.Quota, error) {
			g, err := b.quotas.Reserve(b.Context(), id, quota.ReserveRequest{Amount: 7, RequestID: "q", TTL: time.Second})
			return g.Quota, err
		},
		func(b *bench, why string, done bool) { b.holds(why, 100-7*one(done), 7*one(done), 0) },
	},
	{
		"commit", func(b *bench) string { return b.reserve(7, "r") },
		func(b *bench, reservation string) (quota.Quota, error) {
			return b.quotas.Commit(b.Context(), id, reservation, 5)
		},
		func(b *bench, why string, done bool) { b.holds(why, 93+2*one(done), 7-7*one(done), 5*one(done)) },
	},
	{
		"cancel", func(b *bench) string { return b.reserve(7, "r") },
		func(b *bench, reservation string) (quota.Quota, error) {
			return b.quotas.Cancel(b.Context(), id, reservation)
		},
		func(b *bench, why string, done bool) { b.holds(why, 93+7*one(done), 7-7*one(done), 0) },
	},
	{
		"set", func(*bench) string { return "" },
		func(b *bench, _ string) (quota.Quota, error) {
			return b.quotas.Set(b.Context(), id, quota.Definition{Limit: 107, Window: quota.None})
		},
		func(b *bench, why string, done bool) { b.holds(why, 100+7*one(done), 0, 0) },
	},
}

func one(yes bool) int64 {
	if yes {
		return 1
	}
	return 0
}

func TestRequestsPerOperation(t *testing.T) {
	for _, s := range steps {
		b := newBench(t)
		reservation := s.setUp(b)
		if _, err := s.do(b, reservation); err != nil {
			t.Error(err)
		}
		b.sent(s.name, "GetItem", "GetItem", "TransactWriteItems")
		s.check(b, s.name, true)
	}
	b := newBench(t)
	if _, err := b.quotas.Get(t.Context(), id); err != nil {
		t.Error(err)
	}
	b.sent("get", "GetItem", "GetItem")
	if _, err := b.quotas.Consume(t.Context(), id, 101, "q"); err == nil {
		t.Error("101 of 100 units were used")
	}
	b.sent("a refusal looks for a receipt", "GetItem", "GetItem", "GetItem")
	if n, err := b.quotas.Sweep(t.Context()); n != 0 || err != nil {
		t.Error(n, err)
	}
	b.sent("a sweep of nothing", "Query", "Query", "Query", "Query")
}

func TestL53LostReplies(t *testing.T) {
	for _, s := range steps {
		t.Run(s.name, func(t *testing.T) {
			b := newBench(t)
			reservation := s.setUp(b)
			b.wire.LoseReplies(1, nil)
			first, err := s.do(b, reservation)
			if err != nil {
				t.Fatalf("one reply was lost: %v", err)
			}
			requests := b.sent("one lost reply", "GetItem", "GetItem", "TransactWriteItems", "TransactWriteItems")
			if a, b := requests[2].Body["ClientRequestToken"], requests[3].Body["ClientRequestToken"]; a != b {
				t.Errorf("the retry has the token %v, the first try had %v", b, a)
			}
			s.check(b, "one lost reply", true)
			if again, err := s.do(b, reservation); err != nil || again != first {
				t.Errorf("again it got %+v, %v, first it got %+v", again, err, first)
			}
			s.check(b, "again", true)
		})
		t.Run(s.name+", all of them", func(t *testing.T) {
			b := newBench(t)
			reservation := s.setUp(b)
			b.wire.LoseReplies(3, func() { b.use(1, "meanwhile") })
			_, err := s.do(b, reservation)
			if !errors.Is(err, keytype.ErrOutcomeUnknown) || errors.Is(err, keytype.ErrUnavailable) {
				t.Fatalf("got %v, want that the outcome is unknown", err)
			}
			if _, err := s.do(b, reservation); err != nil {
				t.Errorf("the caller's retry: %v", err)
			}
			b.limit(101) // makes up for what was used meanwhile
			q, err := b.others.Get(t.Context(), id)
			if err != nil || quotatest.Check(q) != nil {
				t.Errorf("%+v, %v", q, err)
			}
			if s.name != "set" && q.Used+q.Reserved != 1+map[string]int64{"consume": 7, "reserve": 7, "commit": 5, "cancel": 0}[s.name] {
				t.Errorf("it was not done once: %+v", q)
			}
		})
	}
}

func TestL32ConflictsAndThrottles(t *testing.T) {
	for _, s := range steps {
		t.Run(s.name, func(t *testing.T) {
			b := newBench(t)
			reservation := s.setUp(b)
			b.wire.Cancel("None", "TransactionConflict")
			if _, err := s.do(b, reservation); err != nil {
				t.Fatalf("a conflict: %v", err)
			}
			requests := b.sent("a conflict", "GetItem", "GetItem", "TransactWriteItems", "TransactWriteItems")
			if a, b := requests[2].Body["ClientRequestToken"], requests[3].Body["ClientRequestToken"]; a != b || a == nil {
				t.Errorf("the retry has the token %v, the first try had %v", b, a)
			}
			s.check(b, "a conflict", true)
		})
		for _, code := range []string{"TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"} {
			t.Run(s.name+" "+code, func(t *testing.T) {
				b := newBench(t)
				reservation := s.setUp(b)
				for range 3 {
					b.wire.Cancel(code, "None")
				}
				if _, err := s.do(b, reservation); !errors.Is(err, keytype.ErrUnavailable) || errors.Is(err, keytype.ErrOutcomeUnknown) {
					t.Errorf("got %v, want that it had no effect", err)
				}
				s.check(b, code, false)
			})
		}
	}
	b := newBench(t)
	b.wire.Refuse(3)
	if _, err := b.quotas.Consume(t.Context(), id, 1, "q"); !errors.Is(err, keytype.ErrUnavailable) {
		t.Errorf("throttled as a whole: %v", err)
	}
	b.wire.Cancel("TransactionConflict", "ConditionalCheckFailed") // mixed: the condition is an answer
	if _, err := b.quotas.Consume(t.Context(), id, 1, "q"); err != nil {
		t.Error(err)
	}
	b.holds("throttled, then mixed", 99, 0, 1)
}

// What was read is out of date when the transaction comes.
func TestOthersBetweenReadAndWrite(t *testing.T) {
	t.Run("units are used", func(t *testing.T) {
		b := newBench(t)
		b.wire.BeforeWrite(1, func() { b.use(90, "other") })
		if q, err := b.quotas.Consume(t.Context(), id, 10, "q"); err != nil || q.Available != 0 {
			t.Errorf("%+v, %v", q, err)
		}
		b.holds("both", 0, 0, 100)
	})
	t.Run("too many", func(t *testing.T) {
		b := newBench(t)
		b.wire.BeforeWrite(1, func() { b.use(91, "other") })
		_, err := b.quotas.Consume(t.Context(), id, 10, "q")
		if e, ok := errors.AsType[*quota.ExceededError](err); !ok || e.Available != 9 {
			t.Error(err)
		}
		b.holds("the other's", 9, 0, 91)
	})
	t.Run("the same request", func(t *testing.T) {
		b := newBench(t)
		b.wire.BeforeWrite(1, func() { b.use(10, "q") })
		if q, err := b.quotas.Consume(t.Context(), id, 10, "q"); err != nil || q.Available != 90 {
			t.Errorf("%+v, %v", q, err)
		}
		b.holds("once", 90, 0, 10)
	})
	t.Run("the limit is lowered", func(t *testing.T) {
		b := newBench(t)
		b.wire.BeforeWrite(1, func() { b.limit(5) })
		_, err := b.quotas.Consume(t.Context(), id, 10, "q")
		if e, ok := errors.AsType[*quota.ExceededError](err); !ok || e.Available != 5 {
			t.Error(err)
		}
	})
	t.Run("the window is changed", func(t *testing.T) {
		b := newBench(t)
		b.wire.BeforeWrite(1, func() {
			if _, err := b.others.Set(t.Context(), id, quota.Definition{Limit: 50, Window: quota.Day}); err != nil {
				t.Error(err)
			}
		})
		if q, err := b.quotas.Consume(t.Context(), id, 10, "q"); err != nil || q.Window != quota.Day || q.Available != 40 {
			t.Errorf("%+v, %v", q, err)
		}
		b.holds("the day's", 40, 0, 10)
	})
	t.Run("the reservation is swept", func(t *testing.T) {
		b := newBench(t)
		reservation := b.reserve(10, "r")
		b.wire.BeforeWrite(1, func() {
			late := quota.New(dynamoquota.New(b.direct, b.prefix), quota.Options{Now: func() time.Time { return b.now.Add(time.Minute) }})
			if n, err := late.Sweep(t.Context()); n != 1 || err != nil {
				t.Errorf("%d swept, %v", n, err)
			}
		})
		if _, err := b.quotas.Commit(t.Context(), id, reservation, 0); !errors.Is(err, quota.ErrExpired) {
			t.Error(err)
		}
		b.holds("returned once", 100, 0, 0)
	})
	t.Run("others are always faster", func(t *testing.T) {
		b := newBench(t)
		for n := range 16 {
			b.wire.BeforeWrite(n+1, func() { b.use(1, fmt.Sprint(n)) })
		}
		if _, err := b.quotas.Consume(t.Context(), id, 50, "q"); !errors.Is(err, keytype.ErrUnavailable) || errors.Is(err, keytype.ErrOutcomeUnknown) {
			t.Error(err)
		}
		b.holds("theirs", 84, 0, 16)
	})
}

// Plain attribute names meet reserved words sooner or later; and the same holds on
// an engine that does not return old items.
func TestL35EveryNameIsAliased(t *testing.T) {
	e := engine.DynamoDB(t)
	wire := &dynamotest.Wire{HideOldItems: true}
	quotatest.Cases(t, func(t *testing.T) quota.Store { return open(t, e.Client(wire.Option), e.Prefix(t)) })
	seen := map[string]int{}
	for _, r := range wire.Take() {
		seen[r.Operation]++
		if bare := r.BareNames(); bare != nil {
			t.Fatalf("%s: %v", r.Operation, bare)
		}
		if r.Operation == "GetItem" && r.Body["ConsistentRead"] != true {
			t.Fatalf("a read that decides is not consistent: %v", r.Body)
		}
	}
	if seen["TransactWriteItems"] == 0 || seen["GetItem"] == 0 || seen["Query"] == 0 {
		t.Errorf("looked at %v", seen)
	}
}

// What DynamoDB's TTL may remove, and when: never the setting, a window without
// an end or an active reservation.
func TestOnlyWhatIsOverHasATTL(t *testing.T) {
	b := newBench(t)
	b.use(1, "q")
	active, ended := b.reserve(2, "r1"), b.reserve(3, "r2")
	if _, err := b.others.Commit(t.Context(), id, ended, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := b.others.Set(t.Context(), quota.ID{Tenant: "t", Name: "n", Subject: "day"}, quota.Definition{Limit: 1, Window: quota.Day}); err != nil {
		t.Fatal(err)
	}
	ttl := func(table, key string) string {
		t.Helper()
		item, err := dynamo.Get(t.Context(), b.direct, table, dynamo.Item{"pk": dynamo.S(key)})
		if err != nil || len(item) == 0 {
			t.Fatalf("%s: %v, %v", key, item, err)
		}
		n, ok := item["ttl"].(*types.AttributeValueMemberN)
		if !ok {
			return "never"
		}
		second, err := strconv.ParseInt(n.Value, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return time.Unix(second, 0).UTC().Format("Jan 2 15:04")
	}
	quotas, reservations, receipts := keytype.Quota.TableName(b.prefix), keytype.QuotaReservation.TableName(b.prefix), keytype.QuotaReceipt.TableName(b.prefix)
	for _, c := range []struct{ why, got, want string }{
		{"the setting", ttl(quotas, keytype.Quota.Key("t", "n", "s", "")), "never"},
		{"a window without an end", ttl(quotas, keytype.Quota.Key("t", "n", "s", "none")), "never"},
		{"a day, a week after it", ttl(quotas, keytype.Quota.Key("t", "n", "day", "day/UTC/2026-03-01")), "Mar 9 00:00"},
		{"an active reservation", ttl(reservations, keytype.QuotaReservation.Key("t", "n", "s", active)), "never"},
		{"one that has ended", ttl(reservations, keytype.QuotaReservation.Key("t", "n", "s", ended)), "Mar 2 12:00"},
		{"a receipt", ttl(receipts, keytype.QuotaReceipt.Key("t", "n", "s", "none", "q")), "Mar 2 12:00"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s, want %s", c.why, c.got, c.want)
		}
	}
}

// An item of a later version is left alone.
func TestAnUnknownFormatIsRefused(t *testing.T) {
	b := newBench(t)
	table, key := keytype.Quota.TableName(b.prefix), keytype.Quota.Key("t", "n", "s", "none")
	_, err := b.direct.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: &table, Item: dynamo.Item{"pk": dynamo.S(key), "v": dynamo.N(2)}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.quotas.Get(t.Context(), id); !errors.Is(err, keytype.ErrUnavailable) {
		t.Error(err)
	}
	if _, err := b.quotas.Consume(t.Context(), id, 1, "q"); !errors.Is(err, keytype.ErrUnavailable) {
		t.Error(err)
	}
}

// An item that cannot be read keeps no reservation, of whatever tenant, from being
// found: it is told of beside them.
func TestUnreadableReservationsAreSkipped(t *testing.T) {
	b := newBench(t)
	table := keytype.QuotaReservation.TableName(b.prefix)
	for n := range 3 * dueShards {
		shard := fmt.Sprint(n % dueShards)
		_, err := b.direct.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: &table, Item: dynamo.Item{
			"pk": dynamo.S(fmt.Sprint("unreadable", n)), "v": dynamo.N(int64(1 + n/dueShards)), "due_shard": dynamo.S(shard), "due": dynamo.S("000000000000001"),
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	b.reserve(5, "r")
	b.now = b.now.Add(time.Minute)
	found, err := dynamoquota.New(b.direct, b.prefix).Due(t.Context(), b.now, 1)
	if len(found) != 1 || found[0].ID != id || !errors.Is(err, keytype.ErrUnavailable) {
		t.Errorf("found %+v, %v", found, err)
	}
	if n, err := b.quotas.Sweep(t.Context()); n != 1 || !errors.Is(err, keytype.ErrUnavailable) || !strings.Contains(err.Error(), "unreadable5") || strings.Contains(err.Error(), "%!") {
		t.Errorf("%d returned, %v", n, err)
	}
	b.holds("returned", 100, 0, 0)
}

// dueShards is how many parts the index has.
const dueShards = 4

// A part of the index that fills the limit hides no other one.
func TestDueBeginsElsewhereEachTime(t *testing.T) {
	b := newBench(t)
	table := keytype.QuotaReservation.TableName(b.prefix)
	for n := range dueShards {
		key := keytype.QuotaReservation.Key("t", "n", "s", fmt.Sprint("r", n))
		_, err := b.direct.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: &table, Item: dynamo.Item{
			"pk": dynamo.S(key), "v": dynamo.N(1), "due_shard": dynamo.S(fmt.Sprint(n)), "due": dynamo.S("000000000000001"),
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	store, seen := dynamoquota.New(b.direct, b.prefix), map[string]bool{}
	for range dueShards {
		found, err := store.Due(t.Context(), b.now, 1)
		if err != nil || len(found) != 1 {
			t.Fatalf("%+v, %v", found, err)
		}
		seen[found[0].Reservation] = true
	}
	if len(seen) != dueShards {
		t.Errorf("found %v", seen)
	}
}
