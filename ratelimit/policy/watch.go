package policy

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/coordsvc/coordsvc/ratelimit"
)

const (
	// lookInterval is how often Watch looks by itself, for what no event tells:
	// network file systems, links within links, an overflowing queue of events.
	lookInterval = 2 * time.Second
	// settleTime is how long files must stay the same before they are taken, so that
	// one half written is not.
	settleTime = 100 * time.Millisecond
	// settleTries bounds the wait for files that change all the time.
	settleTries = 20
)

// A Reloader puts changed policy files in force. put, such as
// [ratelimit.Limiter.Replace], must take a set as a whole or not at all.
type Reloader struct {
	path string
	put  func([]ratelimit.Policy) error

	look, settle time.Duration

	mu      sync.Mutex // one reload at a time
	tried   []source   // guarded by mu: what was read last, right or wrong
	readErr error      // guarded by mu: why it could not be read
}

// NewReloader makes one for a file or folder. It does nothing before Watch or Reload.
func NewReloader(path string, put func([]ratelimit.Policy) error) *Reloader {
	return &Reloader{path: path, put: put, look: lookInterval, settle: settleTime}
}

// Reload reads the files now and puts them in force. An error, as those of [Load],
// leaves in force what is.
func (r *Reloader) Reload() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.take(read(r.path))
}

// take puts in force what was read. The caller holds mu.
func (r *Reloader) take(sources []source, err error) error {
	r.tried, r.readErr = sources, err
	if err != nil {
		return err
	}
	set, err := compile(sources)
	if err != nil {
		return err
	}
	return r.put(set.Policies)
}

// Watch reloads when the files change, within seconds, and whenever asked, until ctx
// ends; first of all it reloads once. It tells report how each reload went.
func (r *Reloader) Watch(ctx context.Context, ask <-chan os.Signal, report func(error)) {
	watcher, err := fsnotify.NewWatcher()
	var events chan fsnotify.Event
	var lost chan error
	if err == nil { // else the system has no watcher left, and the looks must do
		defer watcher.Close()
		events, lost = watcher.Events, watcher.Errors
		r.follow(watcher)
	}
	report(r.Reload()) // what changed before it was watched
	ticker := time.NewTicker(r.look)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ask:
			report(r.Reload())
		case <-events:
			r.refresh(ctx, report)
		case err := <-lost:
			if err != nil { // some events, perhaps
				r.refresh(ctx, report)
			}
		case <-ticker.C:
			r.refresh(ctx, report)
		}
		if watcher != nil {
			r.follow(watcher)
		}
	}
}

// follow watches the folders in which a change of the files shows: an editor
// renames a new file over the old one, and Kubernetes swaps a link beside it. A
// folder that cannot be watched is looked at all the same.
func (r *Reloader) follow(watcher *fsnotify.Watcher) {
	folders := []string{filepath.Dir(r.path)}
	if real, err := filepath.EvalSymlinks(r.path); err == nil {
		folders = append(folders, filepath.Dir(real))
		if info, err := os.Stat(real); err == nil && info.IsDir() {
			folders = append(folders, real)
		}
	}
	watched := watcher.WatchList()
	for _, folder := range folders {
		if !slices.Contains(watched, folder) {
			_ = watcher.Add(folder)
		}
	}
}

// refresh reloads if the files are others than those that were tried last.
func (r *Reloader) refresh(ctx context.Context, report func(error)) {
	sources, err := read(r.path)
	if r.known(sources, err) {
		return
	}
	for range settleTries {
		select {
		case <-ctx.Done():
			return
		case <-time.After(r.settle):
		}
		before, beforeErr := sources, err
		sources, err = read(r.path)
		if same(before, sources, beforeErr, err) {
			break
		}
	}
	if r.known(sources, err) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	report(r.take(sources, err))
}

func (r *Reloader) known(sources []source, err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return same(r.tried, sources, r.readErr, err)
}
