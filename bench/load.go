package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A sample is one case in one round.
type sample struct {
	perSecond float64
	p50, p99  time.Duration
	cpu       float64 // seconds of the server per 100,000 requests
	redisCPU  float64
}

// A load is a case: what is asked, and whose CPU time counts.
type load struct {
	name    string
	request func(ctx context.Context, n int) (*http.Request, error) // the n-th of the round
	server  *process
	redis   *process                        // nil where the case has none
	prepare func(ctx context.Context) error // before each round; nil = nothing
}

// measure sends o.requests requests over o.connections connections.
func (l load) measure(ctx context.Context, o options) (sample, error) {
	if l.prepare != nil {
		if err := l.prepare(ctx); err != nil {
			return sample{}, fmt.Errorf("%s: %w", l.name, err)
		}
	}
	before, err := l.times()
	if err != nil {
		return sample{}, err
	}
	begin := time.Now()
	latencies, err := l.send(ctx, o)
	if err != nil {
		return sample{}, fmt.Errorf("%s: %w", l.name, err)
	}
	took := time.Since(begin)
	after, err := l.times()
	if err != nil {
		return sample{}, err
	}
	slices.Sort(latencies)
	per100k := 100_000 / float64(o.requests)
	return sample{
		perSecond: float64(o.requests) / took.Seconds(),
		p50:       latencies[len(latencies)/2],
		p99:       latencies[len(latencies)*99/100],
		cpu:       (after[0] - before[0]).Seconds() * per100k,
		redisCPU:  (after[1] - before[1]).Seconds() * per100k,
	}, nil
}

func (l load) times() (times [2]time.Duration, err error) {
	if times[0], err = l.server.cpu(); err != nil || l.redis == nil {
		return times, err
	}
	times[1], err = l.redis.cpu()
	return times, err
}

func (l load) send(ctx context.Context, o options) ([]time.Duration, error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: o.connections}, Timeout: 20 * time.Second}
	defer client.CloseIdleConnections()
	latencies := make([]time.Duration, o.requests)
	var next atomic.Int64
	var failed error
	var once sync.Once
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var workers sync.WaitGroup
	for range o.connections {
		workers.Go(func() {
			for n := int(next.Add(1)) - 1; n < o.requests && ctx.Err() == nil; n = int(next.Add(1)) - 1 {
				begin := time.Now()
				if err := l.one(ctx, client, n); err != nil {
					once.Do(func() { failed = err; cancel() })
					return
				}
				latencies[n] = time.Since(begin)
			}
		})
	}
	workers.Wait()
	return latencies, failed
}

// one sends one request. Whatever is not 200 ends the run: a benchmark of refusals measures nothing.
func (l load) one(ctx context.Context, client *http.Client, n int) error {
	req, err := l.request(ctx, n)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("answered %d: %s", resp.StatusCode, body)
	}
	return err
}
