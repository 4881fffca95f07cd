// Package drill decides whether the service kept its promises through a time of
// faults: it uses all pillars at once over several nodes, remembers what they
// acknowledged, and afterwards says what of that did not hold.
package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/client"
)

// Bounds that the service promises.
const (
	Staleness = 12 * time.Second // of a verify after an acknowledged revocation: F + 2σ
	Answer    = 10 * time.Second // of any answer: 8 s, and the way
)

// A Config says what is drilled.
type Config struct {
	URLs []string // of the nodes
	Key  string
	// Limit is what the policy "drill" lets pass per second, after as much at once; its
	// own rate of each node is a tenth of that.
	Limit int64
}

// A Drill is one run.
type Drill struct {
	limit    int64
	nodes    []*client.Client
	sessions *sessions
	limits   *limits
	leases   *leases
	quotas   *quotas
}

// New makes a drill of the nodes.
func New(cfg Config) (*Drill, error) {
	d := &Drill{
		limit:    cfg.Limit,
		sessions: &sessions{pillar: newPillar("sessions", "/v1/sessions", "/v1/users")},
		limits:   &limits{pillar: newPillar("limits", "/v1/ratelimit"), passed: map[string]int64{}},
		leases:   &leases{pillar: newPillar("leases", "/v1/leases", "/v1/protected"), books: map[string]*book{}},
		quotas:   &quotas{pillar: newPillar("quotas", "/v1/quotas")},
	}
	transport := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // it is one
	transport.MaxIdleConnsPerHost = 64
	for _, url := range cfg.URLs {
		c, err := client.New(url, client.Options{
			APIKey: cfg.Key, HTTP: &http.Client{Transport: watch{d, transport}},
			Timeout: 20 * time.Second, TryTimeout: 20 * time.Second, CheckTimeout: 2 * time.Second, OnNoAnswer: api.PostureFailClosed,
		})
		if err != nil {
			return nil, fmt.Errorf("drill: %w", err)
		}
		d.nodes = append(d.nodes, c)
	}
	return d, nil
}

// watch measures answers where they arrive, below the client's own repetitions.
type watch struct {
	d    *Drill
	next http.RoundTripper
}

func (w watch) RoundTrip(r *http.Request) (*http.Response, error) {
	begun := time.Now()
	resp, err := w.next.RoundTrip(r)
	took := time.Since(begun)
	code := "no_answer"
	if err == nil {
		code = codeOf(resp)
	}
	for _, p := range w.d.pillars() {
		if p.has(r.URL.Path) {
			p.answered(code, took)
		}
	}
	return resp, err //nolint:wrapcheck // a round tripper hands on what it was given
}

// codeOf is the code of a problem, "" where the answer is none. The body stays to be read.
func codeOf(resp *http.Response) string {
	if resp.StatusCode < http.StatusBadRequest {
		return ""
	}
	raw, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(raw))
	var p api.Problem
	if err != nil || json.Unmarshal(raw, &p) != nil || p.Code == "" {
		return resp.Status
	}
	return string(p.Code)
}

func (d *Drill) pillars() []*pillar {
	return []*pillar{d.sessions.pillar, d.leases.pillar, d.limits.pillar, d.quotas.pillar}
}

// Run puts load on the nodes until the context ends, then waits until every promise is
// due, and asks for what was acknowledged. settled is the context of that.
func (d *Drill) Run(ctx, settled context.Context) {
	begun := time.Now()
	var wg sync.WaitGroup
	work := func(n int, each func(context.Context, *Drill, int)) {
		for i := range n {
			wg.Go(func() {
				for ctx.Err() == nil {
					each(settled, d, i)
				}
			})
		}
	}
	work(6, d.sessions.live)
	work(2, d.sessions.ask)
	work(6, d.leases.live)
	work(8, d.limits.live)
	work(2, d.quotas.live)
	wg.Wait()
	d.limits.took = time.Since(begun)
	d.sessions.settle(settled, d)
	d.leases.settle(settled, d)
	d.quotas.settle(settled, d)
}

// node is any of them: what one acknowledged the others must know.
func (d *Drill) node() *client.Client { return d.nodes[rand.IntN(len(d.nodes))] }

// pause keeps the load steady rather than high.
func pause(d time.Duration) { time.Sleep(d/2 + rand.N(d)) }

// A pillar counts what was asked of one part of the service.
type pillar struct {
	name  string
	paths []string // of its routes

	mu       sync.Mutex // guards the rest
	calls    int
	failed   int            // of the calls: refused, or without an answer after all repetitions
	requests int            // with the repetitions of calls
	codes    map[string]int // of the requests that were not granted
	longest  time.Duration  // of the requests that were answered
	broken   []string       // promises that did not hold
}

func newPillar(name string, paths ...string) *pillar {
	return &pillar{name: name, paths: paths, codes: map[string]int{}}
}

func (p *pillar) has(path string) bool {
	return slices.ContainsFunc(p.paths, func(prefix string) bool { return strings.HasPrefix(path, prefix) })
}

// answered counts a request.
func (p *pillar) answered(code string, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests++
	if code != "" {
		p.codes[code]++
	}
	if code != "no_answer" {
		p.longest = max(p.longest, took)
	}
}

// call counts a call.
func (p *pillar) call(what func() error) error {
	err := what()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	if err != nil {
		p.failed++
	}
	return err
}

// breaks notes a promise that did not hold.
func (p *pillar) breaks(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = append(p.broken, p.name+": "+what)
}

// persist repeats a call on one node after the other until it is answered: what is asked after the load has to be.
func (d *Drill) persist(ctx context.Context, call func(*client.Client) error) error {
	var err error
	for range 20 {
		if err = call(d.node()); err == nil || ctx.Err() != nil {
			return err
		}
		pause(200 * time.Millisecond)
	}
	return err
}
