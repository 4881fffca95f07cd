package policy

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
)

// burst is the text of a policy p that lets that many pass, and no more for a year.
func burst(n int) string {
	return file(fmt.Sprintf("{name: l, key: [user], algorithm: token_bucket, rate: 1/365d, burst: %d}", n))
}

// limiter makes one over a memory store with the policies of a path.
func limiter(t *testing.T, path string) *ratelimit.Limiter {
	t.Helper()
	store := kv.NewMemory(kv.MemoryOptions{})
	t.Cleanup(func() { _ = store.Close() })
	return limiterOver(t, ratelimit.NewLocal(store), path)
}

func limiterOver(t *testing.T, store ratelimit.Store, path string) *ratelimit.Limiter {
	t.Helper()
	set, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	l, err := ratelimit.New(store, set.Policies, ratelimit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func check(t testing.TB, l *ratelimit.Limiter, descriptors ...string) ratelimit.Decision {
	t.Helper()
	req := ratelimit.Request{Policy: "p", Descriptors: map[string]string{"user": "u"}, Cost: 1}
	for i := 0; i < len(descriptors); i += 2 {
		req.Descriptors[descriptors[i]] = descriptors[i+1]
	}
	d, err := l.Check(context.Background(), "t", req)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A watched path, and what its reloads said.
type watched struct {
	t       *testing.T
	limiter *ratelimit.Limiter
	ask     chan os.Signal
	reports chan error
}

func watch(t *testing.T, path string, change ...func(*Reloader)) *watched {
	t.Helper()
	w := &watched{t: t, limiter: limiter(t, path), ask: make(chan os.Signal, 1), reports: make(chan error, 100)}
	r := NewReloader(path, w.limiter.Replace)
	for _, c := range change {
		c(r)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Watch(ctx, w.ask, func(err error) { w.reports <- err })
	}()
	t.Cleanup(func() { cancel(); <-done })
	w.right("the first look")
	return w
}

// next is what the next reload says. It is promised within 5 s, on a machine that has
// nothing else to do; a test waits longer and logs how long.
func (w *watched) next(why string) error {
	w.t.Helper()
	begun := time.Now()
	select {
	case err := <-w.reports:
		w.t.Logf("%s: reloaded after %v", why, time.Since(begun))
		return err
	case <-time.After(20 * time.Second):
		w.t.Fatalf("%s: no reload within 20 s", why)
		return nil
	}
}

func (w *watched) right(why string) {
	w.t.Helper()
	if err := w.next(why); err != nil {
		w.t.Fatalf("%s: %v", why, err)
	}
}

func (w *watched) allows(why string, n int64) {
	w.t.Helper()
	policy, _, err := w.limiter.Policy("p")
	if err != nil || policy.Limits[0].Burst != n {
		w.t.Errorf("%s: got %+v, %v, want a burst of %d", why, policy, err, n)
	}
}

// events makes a reloader that does not look by itself, so that only events can tell it.
func events(r *Reloader) { r.look = time.Hour }

func TestAChangedFileIsTakenByEvents(t *testing.T) {
	dir := t.TempDir()
	path, beside := filepath.Join(dir, "p.yaml"), filepath.Join(dir, "p.yaml.tmp")
	write(t, path, burst(1))
	w := watch(t, path, events)
	w.allows("at first", 1)
	write(t, path, burst(2))
	w.right("written in place")
	w.allows("written in place", 2)
	for n := 3; n < 6; n++ { // as editors do it
		write(t, beside, burst(n))
		if err := os.Rename(beside, path); err != nil {
			t.Fatal(err)
		}
		w.right("renamed over")
		w.allows("renamed over", int64(n))
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := w.next("removed"); err == nil {
		t.Error("a file that is gone is no mistake")
	}
	w.allows("removed", 5)
	write(t, path, burst(6))
	w.right("back")
	w.allows("back", 6)
}

func TestAChangedFolderIsTakenByEvents(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "policies")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "p.yaml"), burst(1))
	w := watch(t, dir, events)
	write(t, filepath.Join(dir, "q.yaml"), named("q"))
	w.right("another file")
	if _, _, err := w.limiter.Policy("q"); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(dir, "q.yaml")); err != nil {
		t.Fatal(err)
	}
	w.right("one less")
	if _, _, err := w.limiter.Policy("q"); err == nil {
		t.Error("a policy whose file is gone stays")
	}
}

// Kubernetes mounts a volume whose files are links through ..data, which it swaps.
func TestALinkSwappedAsByKubernetesIsTakenByEvents(t *testing.T) {
	for _, single := range []bool{false, true} {
		dir := t.TempDir()
		version := func(n int) {
			data := filepath.Join(dir, fmt.Sprintf("..2026_%d", n))
			if err := os.Mkdir(data, 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(data, "p.yaml"), burst(n))
			if err := os.Symlink(filepath.Base(data), filepath.Join(dir, "..data_tmp")); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
				t.Fatal(err)
			}
		}
		version(1)
		if err := os.Symlink(filepath.Join("..data", "p.yaml"), filepath.Join(dir, "p.yaml")); err != nil {
			t.Fatal(err)
		}
		path := dir
		if single {
			path = filepath.Join(dir, "p.yaml")
		}
		w := watch(t, path, events)
		for n := 2; n < 5; n++ {
			version(n)
			w.right("swapped")
			w.allows("swapped", int64(n))
		}
	}
}

func TestALinkedFolderThatIsSwappedIsTakenByEvents(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "current")
	for n := range 3 {
		release := filepath.Join(dir, "releases", fmt.Sprint(n))
		if err := os.MkdirAll(release, 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(release, "p.yaml"), burst(n+1))
	}
	point := func(n int) {
		_ = os.Remove(link + ".tmp")
		if err := os.Symlink(filepath.Join("releases", fmt.Sprint(n)), link+".tmp"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(link+".tmp", link); err != nil {
			t.Fatal(err)
		}
	}
	point(0)
	w := watch(t, link, events)
	point(1)
	w.right("swapped")
	w.allows("swapped", 2)
	write(t, filepath.Join(link, "p.yaml"), burst(7))
	w.right("changed behind the new link")
	w.allows("changed behind the new link", 7)
}

// Where no event comes, the looks find the change within 5 s: the watched folder
// holds a link to a link, and the inner one is swapped.
func TestAChangeWithoutAnEventIsFound(t *testing.T) {
	dir := t.TempDir()
	for n := 1; n < 3; n++ {
		release := filepath.Join(dir, "far", fmt.Sprint(n))
		if err := os.MkdirAll(release, 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(release, "p.yaml"), burst(n))
	}
	inner, path := filepath.Join(dir, "far", "between", "inner"), filepath.Join(dir, "near", "p.yaml")
	for link, target := range map[string]string{inner: filepath.Join(dir, "far", "1"), path: filepath.Join(inner, "p.yaml")} {
		if err := os.MkdirAll(filepath.Dir(link), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}
	w := watch(t, path)
	if err := os.Remove(inner); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "far", "2"), inner); err != nil {
		t.Fatal(err)
	}
	for err := w.next("swapped far away"); err != nil; err = w.next("swapped far away") { // between the two
	}
	w.allows("swapped far away", 2)
}

func TestR65AWrongFileKeepsWhatIsInForceAndIsReportedOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.yaml")
	write(t, path, burst(5))
	w := watch(t, path, func(r *Reloader) { r.look = 50 * time.Millisecond })
	version := w.limiter.Version()
	write(t, path, burst(0))
	err := w.next("a wrong file")
	if err == nil || err.Error() != path+":6: policies[0].limits[0].burst: must be at least 1" {
		t.Fatalf("got %v", err)
	}
	if w.limiter.Version() != version || !check(t, w.limiter).Allowed {
		t.Error("what was in force is not any more")
	}
	w.ask <- syscall.SIGHUP
	if err := w.next("asked"); err == nil {
		t.Error("asked, it does not say what is wrong")
	}
	time.Sleep(300 * time.Millisecond) // six looks
	if len(w.reports) > 0 {
		t.Errorf("the same mistake is reported again: %v", <-w.reports)
	}
	write(t, path, burst(6))
	w.right("mended")
	w.allows("mended", 6)
}

func TestAFileThatIsStillWrittenIsNotTaken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.yaml")
	write(t, path, burst(1))
	w := watch(t, path, events, func(r *Reloader) { r.settle = 2 * time.Second })
	text := burst(2)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, part := range []string{text[:40], text[40:90], text[90:]} {
		if _, err := f.WriteString(part); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	w.right("the first report is of the whole file")
	w.allows("whole", 2)
}

func TestAskedItReloadsAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.yaml")
	write(t, path, burst(1))
	w := watch(t, path)
	w.ask <- syscall.SIGHUP
	w.right("nothing has changed")
	w.allows("nothing has changed", 1)
}

// A change of an override counts at once, whatever the bucket remembers.
func TestR23R56ALiveChangeKeepsWhatIsUsedAndCountsAtOnce(t *testing.T) {
	for _, algorithm := range []string{"token_bucket", "gcra"} {
		path := filepath.Join(t.TempDir(), "p.yaml")
		text := func(own, override int) string {
			return file(fmt.Sprintf("{name: l, key: [user], algorithm: %s, rate: 1/365d, burst: %d, overrides: [{match: {user: big}, burst: %d}]}", algorithm, own, override))
		}
		write(t, path, text(10, 2))
		l := limiter(t, path)
		r := NewReloader(path, l.Replace)
		change := func(own, override int) {
			t.Helper()
			write(t, path, text(own, override))
			if err := r.Reload(); err != nil {
				t.Fatal(err)
			}
		}
		left := func(why, user string, allowed bool, want int64) {
			t.Helper()
			if d := check(t, l, "user", user); d.Allowed != allowed || d.Limits[0].Remaining != want {
				t.Errorf("%s, %s: got %+v, want %v and %d left", algorithm, why, d, allowed, want)
			}
		}
		for range 7 {
			check(t, l)
		}
		left("8 of 10 used", "u", true, 2)
		change(20, 2)
		left("20, 8 used, and this one", "u", true, 11)
		change(5, 2)
		left("5, 9 used", "u", false, 0)
		change(10, 2)
		left("back to 10 grants nothing", "u", true, 0)
		check(t, l, "user", "big")
		check(t, l, "user", "big")
		left("R23: refused under the low override", "big", false, 0)
		change(10, 7)
		left("R56: a raised override counts at once", "big", true, 4)
	}
}

// While 250 reloads, in a proof 1,000, change two policies together, 8 callers are decided by one
// version or the other, never by a mixture, and a bucket of 500 that both versions
// share lets exactly 500 pass.
func TestReloadsUnderLoad(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		store := kv.NewMemory(kv.MemoryOptions{})
		t.Cleanup(func() { _ = store.Close() })
		reloadsUnderLoad(t, ratelimit.NewLocal(store))
	})
	t.Run("Redis", func(t *testing.T) {
		t.Parallel()
		client := redis.NewClient(&redis.Options{Addr: engine.Redis(t).Addr, MaxRetries: -1})
		t.Cleanup(func() { _ = client.Close() })
		reloadsUnderLoad(t, redislimit.New(client, redislimit.Options{Prefix: engine.FreshPrefix()}))
	})
}

func reloadsUnderLoad(t *testing.T, store ratelimit.Store) {
	dir := t.TempDir()
	reloads := 250
	if depth, _ := os.LookupEnv("COORD_TEST_DEPTH"); depth == "proof" {
		reloads = 1000
	}
	text := func(v int) string { // of each version: both limits of one policy have its burst and its name
		n := 1_000_000 + v
		return fmt.Sprintf(`version: 1
policies:
  - name: p
    on_store_failure: fail_closed
    stage: %s
    limits:
      - {name: first-%d, key: [user], algorithm: token_bucket, rate: 1000000/s, burst: %d}
      - {name: second-%d, key: [user], algorithm: gcra, rate: 1000000/s, burst: %d}
  - name: shared
    owner: version-%d
    on_store_failure: fail_closed
    limits:
      - {name: l, key: [user], algorithm: token_bucket, rate: 1/30d, burst: 500}
`, map[int]string{0: "enforce", 1: "shadow"}[v], v, n, v, n, v)
	}
	path := filepath.Join(dir, "p.yaml")
	write(t, path, text(0))
	l := limiterOver(t, store, path)
	r := NewReloader(path, l.Replace)

	var stop atomic.Bool
	var passed atomic.Int64
	var decisions [2]atomic.Int64
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for i := 0; !stop.Load(); i++ {
				d := check(t, l)
				v := 0
				if d.Stage == ratelimit.Shadow {
					v = 1
				}
				decisions[v].Add(1)
				for j, name := range []string{"first", "second"} {
					if got := d.Limits[j]; got.Name != fmt.Sprintf("%s-%d", name, v) || got.Limit != int64(1_000_000+v) {
						t.Errorf("stage %s with limit %+v", d.Stage, got)
					}
				}
				s, err := l.Check(t.Context(), "t", ratelimit.Request{Policy: "shared", Descriptors: map[string]string{"user": "u"}, Cost: 1})
				if err != nil {
					t.Error(err)
				}
				if s.Allowed {
					passed.Add(1)
				}
				policies, version := l.Policies()
				if want := fmt.Sprintf("version-%d", map[ratelimit.Stage]int{ratelimit.Enforce: 0, ratelimit.Shadow: 1}[policies[0].Stage]); policies[1].Owner != want {
					t.Errorf("version %s holds %s and %s", version, policies[0].Stage, policies[1].Owner)
				}
			}
		})
	}
	for i := range reloads {
		next := filepath.Join(dir, "next")
		write(t, next, text((i+1)%2))
		if err := os.Rename(next, path); err != nil {
			t.Fatal(err)
		}
		if err := r.Reload(); err != nil {
			t.Fatal(err)
		}
		if want := []ratelimit.Stage{ratelimit.Shadow, ratelimit.Enforce}[i%2]; check(t, l).Stage != want {
			t.Fatalf("reload %d is not in force", i)
		}
	}
	stop.Store(true)
	callers.Wait()
	t.Logf("%d reloads, %d decisions by one version, %d by the other", reloads, decisions[0].Load(), decisions[1].Load())
	if decisions[0].Load() == 0 || decisions[1].Load() == 0 {
		t.Error("one version decided nothing")
	}
	if passed.Load() != 500 {
		t.Errorf("%d of 500 passed", passed.Load())
	}
}
