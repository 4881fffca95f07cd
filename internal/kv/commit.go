package kv

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/coordsvc/coordsvc/keytype"
)

// maxBatch bounds the transactions of one commit, and with it how long the first of them waits.
const maxBatch = 256

var (
	// errInDoubt: bbolt shows a transaction whose fsync failed. Whether the disk
	// has it is unknown, and pages that it freed must not be written over.
	errInDoubt = fmt.Errorf("kv: an earlier commit failed half way, the file must be opened anew: %w", keytype.ErrUnavailable)
	// errNoWrites ends a bbolt transaction that has nothing to commit.
	errNoWrites = errors.New("kv: no writes")
)

// An update is one transaction on its way through the committer. The committer
// lends the batch's bbolt transaction to one caller after the other, so fn runs
// on its caller's goroutine and a panic ends where it belongs.
type update struct {
	ctx    context.Context       // of the caller
	turn   chan *bbolt.Tx        // lends the batch, to read
	writes chan map[place][]byte // ends the turn
	result chan error            // how the batch ended; buffered, for a caller that has panicked
}

// update queues fn, runs it in its turn and waits for its commit.
func (b *Bolt) update(ctx context.Context, fn func(Tx) error) error {
	u := &update{ctx: ctx, turn: make(chan *bbolt.Tx), writes: make(chan map[place][]byte), result: make(chan error, 1)}
	select {
	case b.queue <- u:
	case <-ctx.Done():
		return ctx.Err()
	}
	return u.await(fn)
}

// await waits for the turn and runs fn in it.
func (u *update) await(fn func(Tx) error) error {
	select {
	case tx := <-u.turn:
		return u.run(tx, fn)
	case err := <-u.result: // the batch failed before the turn, or passed it by for the context
		return cmp.Or(err, u.ctx.Err())
	case <-u.ctx.Done():
		return u.ctx.Err()
	}
}

// run waits for the commit also where fn returned an error: fn may have read
// what others in the batch wrote.
func (u *update) run(tx *bbolt.Tx, fn func(Tx) error) error {
	refused := u.takeTurn(tx, fn)
	if err := <-u.result; err != nil {
		return err
	}
	return refused
}

// takeTurn runs fn and ends the turn, also when fn panics.
func (u *update) takeTurn(tx *bbolt.Tx, fn func(Tx) error) error {
	var writes map[place][]byte
	defer func() { u.writes <- writes }()
	t := newTransaction(boltBase{tx})
	if err := t.run(fn); err != nil {
		return err
	}
	writes = t.writes
	return nil
}

// lend gives the caller its turn and returns its writes. A caller whose context
// has ended may have left.
func (u *update) lend(tx *bbolt.Tx) map[place][]byte {
	select {
	case u.turn <- tx:
		return <-u.writes
	case <-u.ctx.Done():
		return nil
	}
}

// runCommits is the committer. It ends when the queue is closed.
func (b *Bolt) runCommits() {
	for first := range b.queue {
		b.commit(first)
	}
}

// commit runs first, and whatever queues up meanwhile, in one bbolt
// transaction: under load that is all that waited for the commit before it,
// and a lone writer waits for nobody.
func (b *Bolt) commit(first *update) {
	batch := []*update{first}
	var id int64
	err := b.db.Update(func(tx *bbolt.Tx) error {
		id = int64(tx.ID())
		if id != b.durable.Load()+1 {
			return errInDoubt
		}
		wrote := false
		for i := 0; i < len(batch); i++ {
			writes := batch[i].lend(tx)
			if err := (boltBase{tx}).apply(writes); err != nil {
				return err
			}
			wrote = wrote || len(writes) > 0
			batch = b.join(batch)
		}
		if !wrote {
			return errNoWrites
		}
		return nil
	})
	switch {
	case err == nil:
		b.durable.Store(id)
	case errors.Is(err, errNoWrites):
		err = nil
	case errors.Is(err, errInDoubt):
	default:
		err = fmt.Errorf("commit: %w: %w", keytype.ErrOutcomeUnknown, err)
	}
	for _, u := range batch {
		u.result <- err
	}
}

// join adds the next of the queue to the batch, if one waits and there is room.
func (b *Bolt) join(batch []*update) []*update {
	if len(batch) == maxBatch {
		return batch
	}
	select {
	case u, open := <-b.queue:
		if open {
			return append(batch, u)
		}
	default:
	}
	return batch
}
