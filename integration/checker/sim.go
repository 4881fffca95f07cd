package checker

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// A sim runs tasks one at a time: whichever wakes first, by a clock of its own that
// moves only when all of them sleep. What happens in a run, and in which order, depends on
// nothing but its seed. A task must not wait for another except by sleeping.
//
// In real time its clock is the machine's, and tasks are also away while somebody else
// works for them.
type sim struct {
	rng   *rand.Rand
	now   time.Duration // since the beginning
	ticks int64
	tasks []*task // that have not ended

	real  bool
	begun time.Time      // in real time
	turn  sync.Mutex     // in real time: held by the task that runs
	ended sync.WaitGroup // in real time
}

type task struct {
	sim    *sim
	wake   time.Duration
	resume chan struct{}
	parked chan bool // whether it has ended
}

func newSim(seed uint64) *sim {
	return &sim{rng: rand.New(rand.NewPCG(seed, 1))} //nolint:gosec // a history that can be run again, not a secret
}

// start adds a task that begins after d.
func (s *sim) start(d time.Duration, fn func(*task)) {
	t := &task{sim: s, wake: s.now + d, resume: make(chan struct{}), parked: make(chan bool)}
	if s.real {
		s.ended.Go(func() {
			time.Sleep(d)
			s.take()
			defer s.turn.Unlock()
			fn(t)
		})
		return
	}
	s.tasks = append(s.tasks, t)
	go func() {
		<-t.resume
		fn(t)
		t.parked <- true
	}()
}

// run returns once all tasks have ended.
func (s *sim) run() {
	s.ended.Wait()
	for len(s.tasks) > 0 {
		next := 0
		for i, t := range s.tasks {
			if t.wake < s.tasks[next].wake {
				next = i
			}
		}
		t := s.tasks[next]
		s.now = max(s.now, t.wake)
		t.resume <- struct{}{}
		if <-t.parked {
			s.tasks = slices.Delete(s.tasks, next, next+1)
		}
	}
}

// sleep lets others run for that long.
func (t *task) sleep(d time.Duration) {
	if t.sim.real {
		t.away(func() { time.Sleep(d) })
		return
	}
	t.wake = t.sim.now + d
	t.parked <- false
	<-t.resume
}

// away lets others run, in real time, until fn returns.
func (t *task) away(fn func()) {
	t.sim.turn.Unlock()
	defer t.sim.take()
	fn()
}

// take begins or resumes a task in real time.
func (s *sim) take() {
	s.turn.Lock()
	s.now = time.Since(s.begun)
}

// tick numbers the beginnings and ends of calls.
func (s *sim) tick() int64 {
	s.ticks++
	return s.ticks
}

func (s *sim) chance(p float64) bool { return s.rng.Float64() < p }

func (s *sim) between(from, to time.Duration) time.Duration {
	return from + time.Duration(s.rng.Int64N(int64((to-from)/time.Millisecond)+1))*time.Millisecond
}

// taskKey and callKey find, in a context, who calls and what for.
type (
	taskKey struct{}
	callKey struct{}
)

func (t *task) context(ctx context.Context) context.Context {
	return context.WithValue(ctx, taskKey{}, t)
}

// taskOf is nil where no task calls, but the harness itself.
func taskOf(ctx context.Context) *task {
	t, _ := ctx.Value(taskKey{}).(*task)
	return t
}
