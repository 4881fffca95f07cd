package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// counters only grow. Where two were read the first came before the other readings, and
// the second after them, so that a window has none of them in it.
type counters struct {
	cpu, redisCPU [2]time.Duration
	mallocs       [2]float64
	commands      float64
}

func (b *limitBed) read(ctx context.Context, s *subject) (c counters, err error) {
	for i := range 2 {
		if c.cpu[i], err = s.cpu(); err != nil {
			return c, err
		}
		if c.redisCPU[i], err = b.store.cpu(); err != nil {
			return c, err
		}
		if i == 1 {
			break
		}
		if c.commands, err = commands(ctx, b.client); err != nil {
			return c, err
		}
		for j := range c.mallocs {
			if c.mallocs[j], err = s.mallocs(ctx); err != nil {
				return c, err
			}
		}
	}
	return c, nil
}

// sampleOf is what n decisions took between two readings.
func sampleOf(before, after counters, n float64) *limitSample {
	const share = 100_000
	asking := before.mallocs[1] - before.mallocs[0] // what the question costs, once
	return &limitSample{
		cpu:      (after.cpu[0] - before.cpu[1]).Seconds() * share / n,
		redisCPU: (after.redisCPU[0] - before.redisCPU[1]).Seconds() * share / n,
		commands: (after.commands - before.commands) / n,
		allocs:   max(0, after.mallocs[0]-before.mallocs[1]-asking) / n,
	}
}

// inScripts are the commands that scripts run, and this program's own. Redis counts the
// former like those that are sent; no program here sends them for a decision.
var inScripts = []string{"get", "set", "time", "del", "info", "scan", "memory|usage", "flushall"}

// commands is how many commands Redis was sent.
func commands(ctx context.Context, client *redis.Client) (total float64, err error) {
	stats, err := client.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(stats) {
		name, rest, found := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !found || slices.Contains(inScripts, name) {
			continue
		}
		calls, _, _ := strings.Cut(rest, ",")
		n, err := strconv.ParseFloat(calls, 64)
		if err != nil {
			return 0, fmt.Errorf("commandstats: %w", err)
		}
		total += n
	}
	return total, nil
}

// keyBytes asks Redis how much memory a key takes, by program and policy.
func (b *limitBed) keyBytes(ctx context.Context) (map[string]interval, error) {
	all := map[string]interval{}
	for _, of := range []struct{ name, program, policy string }{
		{keyGCRA, coordsvc, one}, {keyBucket, coordsvc, "bucket"}, {keyWindow, envoy, one},
	} {
		s := b.subjects[of.program]
		if s == nil {
			continue
		}
		if err := b.client.FlushAll(ctx).Err(); err != nil {
			return nil, err
		}
		c := limitCase{protocol: "gRPC", program: of.program, shape: plain}
		caller, err := c.dial(ctx, s)
		if err != nil {
			return nil, err
		}
		for key := range 200 {
			request, err := c.requestOf(of.policy, key)
			if err == nil {
				_, err = caller.call(ctx, request)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", of.name, err)
			}
		}
		_ = caller.close()
		if all[of.name], err = memoryUsage(ctx, b.client); err != nil {
			return nil, fmt.Errorf("%s: %w", of.name, err)
		}
	}
	return all, nil
}

const (
	keyGCRA   = "coordsvc, GCRA"
	keyBucket = "coordsvc, token bucket"
	keyWindow = "envoyproxy/ratelimit, fixed window"
)

// memoryUsage is that of the least, the median and the largest key. One of coordsvc's is no
// limit's: the marker that says whose keys they are.
func memoryUsage(ctx context.Context, client *redis.Client) (interval, error) {
	var sizes []float64
	for keys := client.Scan(ctx, 0, "*", 1000).Iterator(); keys.Next(ctx); {
		size, err := client.MemoryUsage(ctx, keys.Val()).Result()
		if err != nil {
			return interval{}, err
		}
		sizes = append(sizes, float64(size))
	}
	if len(sizes) < 200 {
		return interval{}, fmt.Errorf("%d keys lie in Redis after 200 calls", len(sizes))
	}
	return interval{slices.Min(sizes), median(sizes), slices.Max(sizes)}, nil
}
