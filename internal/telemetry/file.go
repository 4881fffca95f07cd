package telemetry

import (
	"context"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
)

// WatchFile counts the transactions of the embedded store, each for the type whose
// items it touches first, and makes spans of them where there is a tracer.
func (m *Metrics) WatchFile(store kv.Store, tracer *Tracer) kv.Store {
	return watchedFile{store, m, tracer}
}

type watchedFile struct {
	kv.Store
	metrics *Metrics
	tracer  *Tracer // nil without traces
}

// Update implements kv.Store.
func (w watchedFile) Update(ctx context.Context, fn func(kv.Tx) error) error {
	return w.watch(ctx, "update", w.Store.Update, fn)
}

// View implements kv.Store.
func (w watchedFile) View(ctx context.Context, fn func(kv.Tx) error) error {
	return w.watch(ctx, "view", w.Store.View, fn)
}

func (w watchedFile) watch(ctx context.Context, name string, run func(context.Context, func(kv.Tx) error) error, fn func(kv.Tx) error) error {
	tx, ran, begun := watchedTx{first: "none"}, false, time.Now()
	var result error
	err := run(ctx, func(inner kv.Tx) error {
		tx.Tx, ran = inner, true
		result = fn(&tx)
		return result
	})
	outcome := "ok"
	if err != nil && (!ran || result == nil) { // what fn itself says is an answer
		outcome = "failed"
	}
	w.metrics.StoreTried("file", tx.first, name, outcome, time.Since(begun))
	w.tracer.StoreTried(ctx, "file", tx.first, name, outcome, begun)
	return err
}

// A watchedTx notes the first bucket.
type watchedTx struct {
	kv.Tx
	first string
}

func (t *watchedTx) note(bucket string) {
	if t.first == "none" {
		t.first = bucket
	}
}

// Get implements kv.Tx.
func (t *watchedTx) Get(bucket, key string) []byte {
	t.note(bucket)
	return t.Tx.Get(bucket, key)
}

// Put implements kv.Tx.
func (t *watchedTx) Put(bucket, key string, value []byte, expires time.Time) {
	t.note(bucket)
	t.Tx.Put(bucket, key, value, expires)
}

// Delete implements kv.Tx.
func (t *watchedTx) Delete(bucket, key string) {
	t.note(bucket)
	t.Tx.Delete(bucket, key)
}

// Scan implements kv.Tx.
func (t *watchedTx) Scan(bucket, prefix, after string, fn func(key string, value []byte) bool) {
	t.note(bucket)
	t.Tx.Scan(bucket, prefix, after, fn)
}
