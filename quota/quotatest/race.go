package quotatest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/quota"
)

// A Kind of job.
type Kind int

// The kinds of jobs.
const (
	Consumes    Kind = iota
	CommitsAll       // reserves, then commits all of it
	CommitsSome      // all but one unit of it
	Cancels          // reserves, then cancels
	Abandons         // reserves for a moment, and leaves it to the sweeper
	kinds
)

// A Job takes units. Run again, because an answer was lost or a process killed, it
// comes to the same: its request id sees to that.
type Job struct {
	Kind      Kind
	Amount    int64 // 2 or more
	RequestID string
}

// SomeJob draws a job.
func SomeJob(requestID string) Job {
	return Job{Kind(draw(int(kinds))), 2 + int64(draw(8)), requestID}
}

func draw(n int) int { return rand.N(n) } //nolint:gosec // which job comes next is no secret

// Run does the job and returns how many units it used. It is an error if units
// were taken that were not there.
func (j Job) Run(ctx context.Context, m *quota.Manager, id quota.ID) (used int64, err error) {
	if j.Kind == Consumes {
		q, err := m.Consume(ctx, id, j.Amount, j.RequestID)
		if err != nil {
			return 0, err
		}
		return j.Amount, oversold(q)
	}
	ttl := time.Hour
	if j.Kind == Abandons {
		ttl = quota.MinTTL
	}
	g, err := m.Reserve(ctx, id, quota.ReserveRequest{Amount: j.Amount, RequestID: j.RequestID, TTL: ttl})
	if err != nil {
		return 0, err
	}
	if err := oversold(g.Quota); err != nil || j.Kind == Abandons {
		return 0, err
	}
	return j.settle(ctx, m, id, g.Reservation)
}

func (j Job) settle(ctx context.Context, m *quota.Manager, id quota.ID, reservation string) (used int64, err error) {
	if j.Kind == Cancels {
		_, err = m.Cancel(ctx, id, reservation)
		return 0, err
	}
	amount, used := int64(0), j.Amount
	if j.Kind == CommitsSome {
		amount, used = j.Amount-1, j.Amount-1
	}
	_, err = m.Commit(ctx, id, reservation, amount)
	return used, err
}

// Check demands that the sum holds.
func Check(q quota.Quota) error {
	if q.Available+q.Reserved+q.Used != q.Limit || q.Reserved < 0 || q.Used < 0 {
		return fmt.Errorf("the sum does not hold: %+v", q)
	}
	return nil
}

// oversold judges the answer to a request that took units.
func oversold(q quota.Quota) error {
	if q.Available < 0 {
		return fmt.Errorf("units were taken that were not there: %+v", q)
	}
	return Check(q)
}

// A Crew works on one quota through several stores, which are several processes'
// over the same data.
type Crew struct {
	Stores  []quota.Store
	Workers int
	Jobs    int              // of all workers together
	Limits  []int64          // set one after another meanwhile
	Again   func(error) bool // whether a step that failed is to be repeated
}

// A Tally is what came of it.
type Tally struct {
	Used                     int64
	Done, Refused, Repeated  int64
	Reads, Changes, Returned int64 // of the whole account, of the limit, by the sweeper
}

// A run is a crew at work.
type run struct {
	Crew
	id       quota.ID
	late     atomic.Int64 // nanoseconds that the clock is ahead
	managers []*quota.Manager
	next     atomic.Int64

	used, done, refused, repeated, reads, changes, returned atomic.Int64
}

// Work has the crew do its jobs while the limit changes, a sweeper returns what is
// abandoned, and everybody looks whether the sum holds. In the end all is accounted for.
func (c Crew) Work(ctx context.Context, id quota.ID) (Tally, error) {
	r := &run{Crew: c, id: id}
	for _, s := range c.Stores {
		r.managers = append(r.managers, quota.New(s, quota.Options{Now: func() time.Time { return time.Now().Add(time.Duration(r.late.Load())) }}))
	}
	if _, err := r.managers[0].Set(ctx, id, quota.Definition{Limit: c.Limits[0], Window: quota.None}); err != nil {
		return Tally{}, err
	}
	err := r.all(ctx)
	if err == nil {
		r.late.Store(int64(2 * quota.MinTTL))
		err = r.account(ctx)
	}
	return Tally{r.used.Load(), r.done.Load(), r.refused.Load(), r.repeated.Load(), r.reads.Load(), r.changes.Load(), r.returned.Load()}, err
}

// all runs everybody until the jobs are done, or one fails.
func (r *run) all(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var workers, others sync.WaitGroup
	start := func(group *sync.WaitGroup, loop func(context.Context, *quota.Manager) error, m *quota.Manager) {
		group.Go(func() {
			if err := loop(ctx, m); err != nil {
				cancel(err)
			}
		})
	}
	for w := range r.Workers {
		start(&workers, r.work, r.managers[w%len(r.managers)])
	}
	idle, stop := context.WithCancel(ctx)
	for _, loop := range []func(context.Context, *quota.Manager) error{r.read, r.change, r.sweep} {
		others.Go(func() {
			for idle.Err() == nil {
				if err := loop(ctx, r.managers[draw(len(r.managers))]); err != nil && !r.Again(err) {
					cancel(err)
				}
				time.Sleep(time.Millisecond) // leaves the quota to the workers
			}
		})
	}
	workers.Wait()
	stop()
	others.Wait()
	return context.Cause(ctx)
}

func (r *run) work(ctx context.Context, m *quota.Manager) error {
	for n := r.next.Add(1); n <= int64(r.Jobs); n = r.next.Add(1) {
		job := SomeJob(fmt.Sprintf("job-%d", n))
		used, err := job.Run(ctx, m, r.id)
		for err != nil && ctx.Err() == nil && r.Again(err) {
			r.repeated.Add(1)
			time.Sleep(time.Millisecond)
			used, err = job.Run(ctx, m, r.id)
		}
		if _, exceeded := errors.AsType[*quota.ExceededError](err); exceeded {
			r.refused.Add(1)
			continue
		}
		if err != nil {
			return fmt.Errorf("%+v: %w", job, err)
		}
		r.done.Add(1)
		r.used.Add(used)
	}
	return nil
}

func (r *run) read(ctx context.Context, m *quota.Manager) error {
	q, err := m.Get(ctx, r.id)
	if err != nil {
		return err
	}
	r.reads.Add(1)
	return Check(q)
}

func (r *run) change(ctx context.Context, m *quota.Manager) error {
	limit := r.Limits[draw(len(r.Limits))]
	q, err := m.Set(ctx, r.id, quota.Definition{Limit: limit, Window: quota.None})
	if err != nil {
		return err
	}
	r.changes.Add(1)
	return Check(q)
}

func (r *run) sweep(ctx context.Context, m *quota.Manager) error {
	n, err := m.Sweep(ctx)
	r.returned.Add(int64(n))
	return err
}

// account compares what is stored in the end with what the jobs came to.
func (r *run) account(ctx context.Context) error {
	m := r.managers[0]
	for before := int64(-1); before != r.returned.Load(); { // until nothing is left to return
		before = r.returned.Load()
		if err := r.sweep(ctx, m); err != nil {
			return err
		}
	}
	q, err := m.Get(ctx, r.id)
	if err != nil {
		return err
	}
	if q.Reserved != 0 || q.Used != r.used.Load() || q.Available != q.Limit-q.Used {
		return fmt.Errorf("in the end there is %+v, the jobs used %d", q, r.used.Load())
	}
	return nil
}

func race(t *testing.T, s quota.Store) {
	crew := Crew{Stores: []quota.Store{s}, Workers: 50, Jobs: 200, Limits: []int64{400, 300, 600}, Again: func(error) bool { return false }}
	tally, err := crew.Work(t.Context(), quota.ID{Tenant: "t", Name: "n", Subject: "s"})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", tally)
	if tally.Done == 0 || tally.Refused == 0 || tally.Reads == 0 || tally.Changes == 0 {
		t.Errorf("nothing came of it: %+v", tally)
	}
}

// raceOneReservation lets commits, a cancel and sweepers meet at one reservation
// that has just expired by one clock and not by the other. It ends once.
func raceOneReservation(t *testing.T, s quota.Store) {
	id := quota.ID{Tenant: "t", Name: "n", Subject: "s"}
	now := start
	early := quota.New(s, quota.Options{Now: func() time.Time { return now }})
	late := quota.New(s, quota.Options{Now: func() time.Time { return now.Add(time.Second) }})
	if _, err := early.Set(t.Context(), id, quota.Definition{Limit: 1000, Window: quota.None}); err != nil {
		t.Fatal(err)
	}
	want, ends := int64(0), map[string]int{}
	for round := range 12 {
		g, err := early.Reserve(t.Context(), id, quota.ReserveRequest{Amount: 7, RequestID: fmt.Sprint(round), TTL: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		var committed, cancelled, swept int64
		together(8, func(n int) {
			switch (n + round) % 4 { // whoever comes last is often the first to run
			case 0:
				_, err := early.Commit(t.Context(), id, g.Reservation, 5)
				count(t, &committed, err)
			case 1:
				_, err := early.Cancel(t.Context(), id, g.Reservation)
				count(t, &cancelled, err)
			default:
				returned, err := late.Sweep(t.Context())
				if err != nil {
					t.Error(err)
				}
				atomic.AddInt64(&swept, int64(returned))
			}
		})
		end := fmt.Sprintf("committed %t, cancelled %t, swept %d", committed > 0, cancelled > 0, swept)
		ends[end]++
		switch end {
		case "committed true, cancelled false, swept 0":
			want += 5
		case "committed false, cancelled true, swept 0", "committed false, cancelled false, swept 1":
		default:
			t.Errorf("the reservation had more ends than one, or none: %s", end)
		}
		if q, err := early.Get(t.Context(), id); err != nil || q.Used != want || q.Reserved != 0 || q.Available != q.Limit-want {
			t.Fatalf("%s: %+v, %v, want %d used", end, q, err, want)
		}
	}
	t.Log(ends)
}

// count counts an end that was the caller's.
func count(t *testing.T, n *int64, err error) {
	switch {
	case err == nil:
		atomic.AddInt64(n, 1)
	case errors.Is(err, quota.ErrMismatch), errors.Is(err, quota.ErrExpired):
	default:
		t.Error(err)
	}
}

// raceOneRequest sends the same request many times at once: it counts once.
func raceOneRequest(t *testing.T, s quota.Store) {
	id := quota.ID{Tenant: "t", Name: "n", Subject: "s"}
	m := quota.New(s, quota.Options{})
	if _, err := m.Set(t.Context(), id, quota.Definition{Limit: 1000, Window: quota.None}); err != nil {
		t.Fatal(err)
	}
	var ids sync.Map
	together(32, func(n int) {
		if n%2 == 0 {
			if q, err := m.Consume(t.Context(), id, 3, "c"); err != nil || q.Limit != 1000 {
				t.Error(err)
			}
			return
		}
		g, err := m.Reserve(t.Context(), id, quota.ReserveRequest{Amount: 4, RequestID: "r", TTL: time.Minute})
		if err != nil {
			t.Error(err)
		}
		ids.Store(g.Reservation, true)
	})
	different := 0
	ids.Range(func(any, any) bool { different++; return true })
	if q, err := m.Get(t.Context(), id); err != nil || different != 1 || q.Used != 3 || q.Reserved != 4 {
		t.Errorf("%d reservations, %+v, %v", different, q, err)
	}
}

// together calls f n times at the same moment.
func together(n int, f func(int)) {
	var ready, done sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		ready.Add(1)
		done.Go(func() {
			ready.Done()
			<-begin
			f(i)
		})
	}
	ready.Wait()
	close(begin)
	done.Wait()
}
