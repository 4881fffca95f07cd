package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/client"
)

// An exercise is one run of all scenes. Its names are its own, so that it can run
// again on the same service.
type exercise struct {
	service  *client.Client
	url, key string
	id       string
	mu       sync.Mutex // of stdout
	stdout   io.Writer
	worker1  *worker
}

const longHold = 30 * time.Second // of workers that nobody has to wait for

func newExercise(url, key string, stdout io.Writer) (*exercise, error) {
	e := &exercise{url: url, key: key, id: strings.ToLower(rand.Text()[:8]), stdout: stdout}
	var err error
	if e.service, err = e.over(http.DefaultTransport); err != nil {
		return nil, err
	}
	e.worker1 = e.newWorker("worker-1", longHold)
	return e, nil
}

// over is the service over a network. Its workers have time: they wait for a check
// longer than the request of a user would.
func (e *exercise) over(network http.RoundTripper) (*client.Client, error) {
	return client.New(e.url, client.Options{
		APIKey: e.key, HTTP: &http.Client{Transport: network},
		Timeout: time.Minute, CheckTimeout: 10 * time.Second, OnNoAnswer: api.PostureFailClosed,
	})
}

func (e *exercise) newWorker(name string, hold time.Duration) *worker {
	return &worker{service: e.service, name: name, hold: hold, say: e.say}
}

func (e *exercise) say(worker, step, outcome string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	fmt.Fprintf(e.stdout, "   %-9s %-9s %s\n", worker, step, outcome)
}

func (e *exercise) named(kind string) string { return kind + "-" + e.id }

func (e *exercise) run(ctx context.Context) error {
	for i, scene := range []struct {
		title string
		play  func(context.Context) error
	}{
		{"An action, step by step", e.stepByStep},
		{"The same action is delivered again: the stored answer, no second execution", e.deliveredAgain},
		{"Three workers are told at once: one does it, and all have its answer", e.atOnce},
		{"The first answer to every call is lost: still one execution", e.lostAnswers},
		{"A worker writes and dies before it says so: the next one does not write again", e.diedAfterTheWrite},
		{"A worker sleeps through its lease: its late write is refused, the new holder's stands", e.pausedWorker},
		{"A moderator over the limit, and one who was logged out, change nothing", e.notAllowed},
	} {
		fmt.Fprintf(e.stdout, "%d. %s\n", i+1, scene.title)
		if err := scene.play(ctx); err != nil {
			return fmt.Errorf("%s: %w", scene.title, err)
		}
	}
	fmt.Fprintln(e.stdout, "every action was carried out once, and no late write was accepted")
	return nil
}

func (e *exercise) stepByStep(ctx context.Context) error {
	a := action{ID: e.named("act-1"), Account: e.named("ann"), State: "suspended", Weight: 1}
	session, err := e.login(ctx, "mod-1")
	if err != nil {
		return err
	}
	if _, err := deliver(ctx, e.worker1, session, a); err != nil {
		return err
	}
	return e.expectOnce(ctx, a)
}

func (e *exercise) deliveredAgain(ctx context.Context) error {
	a := action{ID: e.named("act-1"), Account: e.named("ann"), State: "suspended", Weight: 1}
	session, err := e.login(ctx, "mod-1")
	if err != nil {
		return err
	}
	r, err := deliver(ctx, e.newWorker("worker-2", longHold), session, a)
	if err != nil {
		return err
	}
	if r.Worker != "worker-1" {
		return fmt.Errorf("the answer is %s's", r.Worker)
	}
	a.State = "active"
	if _, err := deliver(ctx, e.worker1, session, a); !client.IsCode(err, api.CodeIdempotencyMismatch) {
		return fmt.Errorf("another action under the same id: %w", err)
	}
	e.say("worker-1", "claim", "refused: the id is another action's")
	a.State = "suspended"
	return e.expectOnce(ctx, a)
}

func (e *exercise) atOnce(ctx context.Context) error {
	a := action{ID: e.named("act-2"), Account: e.named("fay"), State: "suspended", Weight: 1}
	session, err := e.login(ctx, "mod-2")
	if err != nil {
		return err
	}
	var answers [3]receipt
	var errs [3]error
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			answers[i], errs[i] = deliver(ctx, e.newWorker(fmt.Sprintf("worker-%d", i+1), longHold), session, a)
		})
	}
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	if answers[1] != answers[0] || answers[2] != answers[0] {
		return fmt.Errorf("the answers differ: %+v", answers)
	}
	return e.expectOnce(ctx, a)
}

// A lossy transport has each request carried out, and loses the first answer of each call.
type lossy struct {
	lost map[string]bool // by method and path
}

var errLost = errors.New("the answer was lost")

func (l *lossy) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := http.DefaultTransport.RoundTrip(r)
	call := r.Method + " " + r.URL.Path
	if err != nil || l.lost[call] {
		return resp, err
	}
	l.lost[call] = true
	return nil, errors.Join(errLost, resp.Body.Close())
}

func (e *exercise) lostAnswers(ctx context.Context) error {
	a := action{ID: e.named("act-3"), Account: e.named("bob"), State: "suspended", Weight: 1}
	session, err := e.login(ctx, "mod-3")
	if err != nil {
		return err
	}
	network := &lossy{lost: map[string]bool{}}
	w := e.newWorker("worker-1", longHold)
	if w.service, err = e.over(network); err != nil {
		return err
	}
	r, err := deliver(ctx, w, session, a)
	if err != nil {
		return err
	}
	const calls = 8 // verify, check, claim, acquire, read, write, complete, release
	if len(network.lost) != calls || r.Token != 1 {
		return fmt.Errorf("%d answers were lost, and the token is %d", len(network.lost), r.Token)
	}
	e.say("network", "lost", fmt.Sprintf("%d answers, one of each call", len(network.lost)))
	return e.expectOnce(ctx, a)
}

// diedAfterTheWrite has a first run write and go no further. Nobody frees its claim and its lease: they end.
func (e *exercise) diedAfterTheWrite(ctx context.Context) error {
	a := action{ID: e.named("act-4"), Account: e.named("cai"), State: "suspended", Weight: 1}
	session, err := e.login(ctx, "mod-4")
	if err != nil {
		return err
	}
	life, die := context.WithCancel(ctx)
	defer die()
	dying := e.newWorker("worker-1", time.Second)
	if dying.service, err = e.over(deadAfter{die}); err != nil {
		return err
	}
	if _, err := dying.enforce(life, session, a); err == nil {
		return errors.New("it did not die")
	}
	e.say("worker-1", "dies", "before it says so")
	r, err := deliver(ctx, e.newWorker("worker-2", longHold), session, a)
	if err != nil {
		return err
	}
	if r.Worker != "worker-2" || r.Token != 2 {
		return fmt.Errorf("the answer is %s's, under token %d", r.Worker, r.Token)
	}
	return e.expectOnce(ctx, a)
}

// deadAfter ends the process, as far as others can see it, with the answer to its write.
type deadAfter struct{ die func() }

func (d deadAfter) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/release") || strings.HasSuffix(r.URL.Path, "/abandon") {
		return nil, errLost
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err == nil && r.Method == http.MethodPut {
		d.die()
		return nil, errors.Join(errLost, resp.Body.Close())
	}
	return resp, err
}

func (e *exercise) pausedWorker(ctx context.Context) error {
	a := action{ID: e.named("act-5"), Account: e.named("dia"), State: "suspended", Weight: 1}
	session, err := e.login(ctx, "mod-5")
	if err != nil {
		return err
	}
	asleep, wake := make(chan struct{}), make(chan struct{})
	sleeper := e.newWorker("worker-1", time.Second)
	sleeper.stalled = func() {
		e.say("worker-1", "sleeps", "it holds the lease and is about to write")
		close(asleep)
		<-wake
		e.say("worker-1", "wakes", "and goes on where it was")
	}
	late := make(chan error, 1)
	go func() {
		_, err := sleeper.enforce(ctx, session, a)
		late <- err
	}()
	select {
	case <-asleep:
	case err := <-late:
		return fmt.Errorf("it did not come to its write: %w", err)
	}
	first, err := deliver(ctx, e.newWorker("worker-2", longHold), session, a)
	close(wake)
	lateErr := <-late
	if err != nil {
		return err
	}
	if !errors.Is(lateErr, errSuperseded) {
		return fmt.Errorf("the late write: %w", lateErr)
	}
	again, err := deliver(ctx, e.worker1, session, a) // as its queue does after an error
	if err != nil {
		return err
	}
	if again != first || first.Worker != "worker-2" || first.Token != 2 {
		return fmt.Errorf("answers %+v and %+v", first, again)
	}
	return e.expectOnce(ctx, a)
}

func (e *exercise) notAllowed(ctx context.Context) error {
	a := action{ID: e.named("act-6"), Account: e.named("eli"), State: "suspended", Weight: 20}
	session, err := e.login(ctx, "mod-6")
	if err != nil {
		return err
	}
	// One after the other, until the bucket of 20 has not filled again when the next one comes.
	for n := 1; err == nil && n <= 20; n++ {
		a.ID = fmt.Sprintf("%s-%d", e.named("act-6"), n)
		_, err = e.worker1.enforce(ctx, session, a)
	}
	if !errors.Is(err, errLimited) {
		return fmt.Errorf("no limit was met: %w", err)
	}
	e.say("worker-1", "limit", "refused: "+err.Error())
	if err := e.expectNot(ctx, a); err != nil {
		return err
	}
	if err := e.logout(ctx, "mod-6", session); err != nil {
		return err
	}
	a.ID = e.named("act-7")
	if _, err := e.worker1.enforce(ctx, session, a); !errors.Is(err, errNotAllowed) {
		return fmt.Errorf("logged out: %w", err)
	}
	e.say("worker-1", "verify", "refused: logged out")
	return e.expectNot(ctx, a)
}

// logout ends the moderator's sessions and waits until it shows: at once where the
// answer says cache_propagated, else within 12 s.
func (e *exercise) logout(ctx context.Context, moderator, session string) error {
	done, err := e.service.LogoutAll(ctx, e.named(moderator), api.LogoutAll{})
	if err != nil || done.CachePropagated {
		return err
	}
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if _, err := e.worker1.verify(ctx, session); err != nil {
			return nil //nolint:nilerr // what it is the caller sees with its own call
		}
	}
	return nil
}

// deliver stands for the queue: it delivers the action until it is done, or refused for good.
func deliver(ctx context.Context, w *worker, session string, a action) (receipt, error) {
	for {
		r, err := w.enforce(ctx, session, a)
		if !errors.Is(err, errSuperseded) && !client.IsCode(err, api.CodeIdempotencyInFlight, api.CodeLeaseHeld) {
			return r, err
		}
		wait := 100 * time.Millisecond
		if p, ok := errors.AsType[*client.ProblemError](err); ok {
			wait = min(max(p.RetryAfter, wait), time.Second) // it is often over before it has to be
		}
		w.say(w.name, "waits", "another run may be at work")
		select {
		case <-ctx.Done():
			return receipt{}, err
		case <-time.After(wait):
		}
	}
}

// login makes the session of a moderator who has shown a second factor.
func (e *exercise) login(ctx context.Context, moderator string) (token string, err error) {
	made, err := e.service.CreateSession(ctx, api.CreateSession{UserID: e.named(moderator), AAL: new(int64(2)), AMR: &[]string{"pwd", "otp"}})
	return made.Token, err
}

// expectOnce checks that the account is as the action wants it, after one write in all.
func (e *exercise) expectOnce(ctx context.Context, a action) error {
	r, version, err := e.worker1.read(ctx, "account/"+a.Account)
	if err != nil {
		return err
	}
	if r.State != a.State || version != 1 || !slices.Equal(r.Actions, []string{a.ID}) {
		return fmt.Errorf("account %s is %+v after %d writes", a.Account, r, version)
	}
	e.say("account", r.State, "by one write")
	return nil
}

// expectNot checks that the action has not been carried out.
func (e *exercise) expectNot(ctx context.Context, a action) error {
	r, _, err := e.worker1.read(ctx, "account/"+a.Account)
	if err == nil && slices.Contains(r.Actions, a.ID) {
		err = fmt.Errorf("action %s was carried out", a.ID)
	}
	return err
}
