package checker

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/fencing/dynamofence"
	"github.com/coordsvc/coordsvc/idempotency"
	"github.com/coordsvc/coordsvc/idempotency/dynamoidempotency"
	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/internal/dynamo/dynamotest"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lease"
	"github.com/coordsvc/coordsvc/lease/dynamolease"
	"github.com/coordsvc/coordsvc/quota"
	"github.com/coordsvc/coordsvc/quota/dynamoquota"
)

// A Ground is where histories run.
type Ground struct {
	Name string
	// data opens what the nodes of a history share: what others use too, unless alone.
	data func(h *history, alone bool) (data, error)
}

// data is what the nodes of a history share.
type data interface {
	// node opens the stores of one node.
	node() stores
	// lose deletes the resource's lease and mark, as a restore from an old copy does.
	lose(ctx context.Context, tenant, resource string) error
	close()
}

// stores are what one node uses.
type stores struct {
	leases  lease.Store
	fences  fencing.Store
	quotas  quota.Store
	records idempotency.Store
	refresh func(context.Context) error // of what the node remembers of the floor
}

// Memory is the embedded store in memory.
func Memory() Ground {
	return Ground{"memory", func(h *history, _ bool) (data, error) {
		store := kv.NewMemory(kv.MemoryOptions{})
		return local{faulty{store, h}, func() { _ = store.Close() }}, nil
	}}
}

// Bolt is the embedded store in a file.
func Bolt(t *testing.T) (Ground, error) {
	dir := t.TempDir()
	shared, err := kv.Open(filepath.Join(dir, "shared.db"), kv.BoltOptions{})
	if err != nil {
		return Ground{}, err
	}
	t.Cleanup(func() { _ = shared.Close() })
	return Ground{"bbolt", func(h *history, alone bool) (data, error) {
		if !alone {
			return local{faulty{shared, h}, func() {}}, nil
		}
		own, err := kv.Open(filepath.Join(dir, fmt.Sprintf("%s.db", h.tenant)), kv.BoltOptions{})
		if err != nil {
			return nil, err
		}
		return local{faulty{own, h}, func() { _ = own.Close() }}, nil
	}}, nil
}

// local is an embedded store.
type local struct {
	kv  kv.Store
	end func()
}

func (l local) node() stores {
	return stores{
		leases: lease.NewLocal(l.kv), fences: fencing.NewLocal(l.kv), quotas: quota.NewLocal(l.kv), records: idempotency.NewLocal(l.kv),
		refresh: func(context.Context) error { return nil },
	}
}

func (l local) lose(ctx context.Context, tenant, resource string) error {
	return l.kv.Update(ctx, func(tx kv.Tx) error {
		tx.Delete(keytype.Lease.Bucket(), keytype.Lease.Key(tenant, resource))
		tx.Delete(keytype.Fence.Bucket(), keytype.Fence.Key(tenant, resource))
		return nil
	})
}

func (l local) close() { l.end() }

// faulty is an embedded store whose transactions are slow, refused, or not answered.
type faulty struct {
	kv.Store
	h *history
}

func (f faulty) pause(ctx context.Context) {
	d := time.Duration(f.h.rng.Int64N(2000)) * time.Microsecond
	if f.h.chance(f.h.rates[dynamotest.Latency]) {
		f.h.note(string(dynamotest.Latency))
		d += f.h.between(0, 300*time.Millisecond)
	}
	taskOf(ctx).sleep(d)
}

// Update implements kv.Store.
func (f faulty) Update(ctx context.Context, fn func(kv.Tx) error) error {
	if taskOf(ctx) == nil {
		return f.Store.Update(ctx, fn)
	}
	f.pause(ctx)
	if f.h.chance(f.h.rates[dynamotest.ResetBefore]) {
		f.h.note(string(dynamotest.ResetBefore))
		return fmt.Errorf("made by the test: %w", keytype.ErrUnavailable)
	}
	if err := f.Store.Update(ctx, fn); err != nil {
		return err
	}
	f.pause(ctx)
	if !f.h.calm() && f.h.chance(f.h.rates[dynamotest.ResetAfter]) {
		f.h.note(string(dynamotest.ResetAfter))
		return fmt.Errorf("made by the test: %w", keytype.ErrOutcomeUnknown)
	}
	return nil
}

// View implements kv.Store.
func (f faulty) View(ctx context.Context, fn func(kv.Tx) error) error {
	if taskOf(ctx) == nil {
		return f.Store.View(ctx, fn)
	}
	f.pause(ctx)
	defer f.pause(ctx)
	return f.Store.View(ctx, fn)
}

// Dynamo is DynamoDB, behind a proxy.
func Dynamo(t *testing.T) (Ground, error) {
	e := engine.DynamoDB(t)
	shared := e.Prefix(t)
	if err := createTables(t.Context(), e.Client(), shared); err != nil {
		return Ground{}, err
	}
	return Ground{"DynamoDB", func(h *history, alone bool) (data, error) {
		h.proxy = h.newProxy()
		d := remote{h, e, shared}
		if alone {
			d.prefix = e.Prefix(t)
			return d, createTables(t.Context(), e.Client(), d.prefix)
		}
		return d, nil
	}}, nil
}

func createTables(ctx context.Context, client *dynamodb.Client, prefix string) error {
	tables := append(dynamoquota.Tables(prefix), dynamolease.Table(prefix), dynamofence.Table(prefix), dynamoidempotency.Table(prefix))
	return dynamo.Create(ctx, client, tables...)
}

// newProxy makes one that lives in the history's time.
func (h *history) newProxy() *dynamotest.Proxy {
	p := &dynamotest.Proxy{
		Rand: h.rng, Rates: h.rates, Calm: h.calm,
		Now: func() time.Duration { return h.now },
		Pause: func(ctx context.Context, d time.Duration) {
			if t := taskOf(ctx); t != nil {
				t.sleep(d)
			}
		},
		Later:  func(d time.Duration, fn func()) { h.start(d, func(*task) { fn() }) },
		Landed: h.landed,
	}
	if h.mutant.Proxy != nil {
		h.mutant.Proxy(p)
	}
	return p
}

// remote is an engine behind the history's proxy.
type remote struct {
	h      *history
	engine *engine.Dynamo
	prefix string
}

func (r remote) node() stores {
	client := r.engine.Client(r.h.proxy.Option)
	leases := dynamolease.New(client, r.prefix)
	return stores{
		leases: leases, fences: dynamofence.New(client, r.prefix), quotas: dynamoquota.New(client, r.prefix),
		records: dynamoidempotency.New(client, r.prefix), refresh: leases.RefreshFloor,
	}
}

func (r remote) lose(ctx context.Context, tenant, resource string) error {
	table := keytype.Lease.TableName(r.prefix)
	_, err := r.engine.Client().DeleteItem(ctx, &dynamodb.DeleteItemInput{TableName: &table, Key: dynamo.Item{"pk": dynamo.S(keytype.Lease.Key(tenant, resource))}})
	return err
}

func (r remote) close() {}
