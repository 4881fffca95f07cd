package main

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A limitBed is everything that runs while rate limits are measured.
type limitBed struct {
	*lab
	store    *process
	client   *redis.Client
	subjects map[string]*subject // by program
	refusing int                 // runs of cases that refuse
}

// limits measures rate limits, and writes the tables.
func limits(ctx context.Context, o options, out io.Writer) error {
	cases, err := chosen(o.only)
	if err != nil {
		return err
	}
	l, err := openLab(ctx, o.program, asReleased)
	if err != nil {
		return err
	}
	defer l.close()
	b := &limitBed{lab: l, subjects: map[string]*subject{}}
	if err := b.open(ctx, cases, o.peers); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s, %d cores, %d rounds × %d calls, %d connections\n", runtime.Version(), runtime.NumCPU(), o.rounds, o.requests, o.connections)
	if err := b.versions(ctx, out); err != nil {
		return err
	}
	r := results{rounds: map[string][]*limitSample{}}
	if o.only == "" {
		if r.library, err = libraryFunctions(ctx); err != nil {
			return err
		}
	}
	random := rand.New(rand.NewPCG(7, 8)) //nolint:gosec // reproducible, nothing secret
	for round := range o.rounds {
		for _, i := range random.Perm(len(cases)) {
			c := cases[i]
			name := c.String()
			if round == 0 {
				r.rounds[name] = make([]*limitSample, o.rounds)
			}
			if !c.full && round%3 != 0 {
				continue
			}
			if r.rounds[name][round], err = b.measure(ctx, c, o); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, o.rounds)
	}
	if r.keyBytes, err = b.keyBytes(ctx); err != nil {
		return err
	}
	return r.report(out, cases)
}

func chosen(only string) ([]limitCase, error) {
	match, err := regexp.Compile(only)
	if err != nil {
		return nil, fmt.Errorf("-only: %w", err)
	}
	cases := slices.DeleteFunc(limitCases(), func(c limitCase) bool { return !match.MatchString(c.String()) })
	if len(cases) == 0 {
		return nil, fmt.Errorf("-only %q: no case is called so", only)
	}
	return cases, nil
}

// open starts Redis and the programs of the cases.
func (b *limitBed) open(ctx context.Context, cases []limitCase, peers string) error {
	addr, store, err := b.redis(ctx)
	if err != nil {
		return err
	}
	b.store, b.client = store, redis.NewClient(&redis.Options{Addr: addr})
	for _, c := range cases {
		home := c.home()
		if b.subjects[home] != nil {
			continue
		}
		var s *subject
		switch home {
		case floor:
			s, err = startLimitFloor(ctx, b.lab, addr)
		case coordsvc:
			s, err = startOurs(ctx, b.lab, addr)
		case envoy:
			s, err = startEnvoyRatelimit(ctx, b.lab, filepath.Join(peers, "service_cmd"), addr)
		default:
			s, err = startGubernator(ctx, b.lab, filepath.Join(peers, "gubernator"))
		}
		if err != nil {
			return fmt.Errorf("start %s: %w", c.program, err)
		}
		b.subjects[home] = s
	}
	return nil
}

// versions tells what is measured.
func (b *limitBed) versions(ctx context.Context, out io.Writer) error {
	server, err := b.client.InfoMap(ctx, "server").Result()
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "Redis", server["Server"]["redis_version"])
	for _, program := range []string{envoy, gubernator} {
		if s := b.subjects[program]; s != nil {
			build, err := buildinfo.ReadFile(s.cmd.Path)
			if err != nil {
				return err
			}
			fmt.Fprintln(out, build.Main.Path, build.Main.Version)
		}
	}
	return nil
}

// A limitSample is a case in one round.
type limitSample struct {
	perSecond      float64 // decisions
	p50, p99, p999 float64 // ms of a call
	// Of a decision; seconds of CPU are of 100,000.
	cpu, redisCPU, commands, allocs float64
}

// measure asks on an empty Redis: first what is not counted, then what is.
func (b *limitBed) measure(ctx context.Context, c limitCase, o options) (*limitSample, error) {
	keys := c.keys(o.requests)
	if c.refuse { // keys of its own: a program may remember who was refused in the run before
		b.refusing++
		for i := range keys {
			keys[i] += b.refusing * keyCount
		}
	}
	requests, err := c.requests(keys, func(n int) bool { return c.refuse && n%2 == 1 })
	if err != nil {
		return nil, err
	}
	warmUp := requests[:min(len(requests), 1000)]
	if c.refuse { // uses every limit up
		if warmUp, err = c.requests(keys, func(int) bool { return true }); err != nil {
			return nil, err
		}
	}
	if err := b.client.FlushAll(ctx).Err(); err != nil {
		return nil, err
	}
	s := b.subjects[c.home()]
	callers := make([]caller, o.connections)
	for i := range callers {
		if c.streams > 0 && i%c.streams != 0 {
			callers[i] = callers[i-1]
			continue
		}
		if callers[i], err = c.dial(ctx, s); err != nil {
			return nil, err
		}
		defer callers[i].close()
	}
	if _, _, err := send(ctx, callers, warmUp); err != nil {
		return nil, fmt.Errorf("warm up: %w", err)
	}
	runtime.GC()
	before, err := b.read(ctx, s)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	latencies, refused, err := send(ctx, callers, requests)
	took := time.Since(begin)
	if err != nil {
		return nil, err
	}
	after, err := b.read(ctx, s)
	if err != nil {
		return nil, err
	}
	want := 0
	if c.refuse {
		want = len(requests) / 2
	}
	if refused != want {
		return nil, fmt.Errorf("%d of %d calls were refused, not %d", refused, len(requests), want)
	}
	slices.Sort(latencies)
	at := func(share float64) float64 { return latencies[int(share*float64(len(latencies)))].Seconds() * 1000 }
	decisions := float64(len(requests) * c.limits)
	sample := sampleOf(before, after, decisions)
	sample.perSecond, sample.p50, sample.p99, sample.p999 = decisions/took.Seconds(), at(0.5), at(0.99), at(0.999)
	return sample, nil
}

func (c limitCase) requests(keys []int, used func(n int) bool) ([][]byte, error) {
	all := make([][]byte, len(keys))
	for n, key := range keys {
		var err error
		if all[n], err = c.request(key, used(n)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// send shares the requests among the callers.
func send(ctx context.Context, callers []caller, requests [][]byte) (latencies []time.Duration, refused int, err error) {
	latencies = make([]time.Duration, len(requests))
	var next, refusals atomic.Int64
	faults := make([]error, len(callers))
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	var workers sync.WaitGroup
	for i, c := range callers {
		workers.Go(func() {
			for n := int(next.Add(1)) - 1; n < len(requests) && ctx.Err() == nil; n = int(next.Add(1)) - 1 {
				begin := time.Now()
				refused, err := c.call(ctx, requests[n])
				latencies[n] = time.Since(begin)
				if err != nil {
					faults[i] = err
					cancel()
					return
				}
				if refused {
					refusals.Add(1)
				}
			}
		})
	}
	workers.Wait()
	return latencies, int(refusals.Load()), errors.Join(faults...)
}
