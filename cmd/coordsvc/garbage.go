package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// The collector of garbage costs a share of every request, which is the smaller the more
// garbage it waits for. While little is in use it waits for four times as much, and never
// for more than garbageRoom, or as much as is in use where that is larger, which is Go's own rule.
const (
	garbageMost  = 400       // percent of what is in use
	garbageLeast = 100       // Go's own
	garbageRoom  = 256 << 20 // bytes
	garbageLook  = time.Second
)

// garbagePercent is what to wait for while so many bytes are in use.
func garbagePercent(inUse uint64) int {
	return int(min(garbageMost, max(garbageLeast, 100*garbageRoom/max(1, inUse))))
}

// boundGarbage keeps to the above until ctx ends, unless GOGC says otherwise.
func boundGarbage(ctx context.Context, getenv func(string) string) {
	if getenv("GOGC") != "" {
		return
	}
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	before := debug.SetGCPercent(garbageMost)
	defer debug.SetGCPercent(before)
	ticker := time.NewTicker(garbageLook)
	defer ticker.Stop()
	for percent := garbageMost; ; {
		metrics.Read(sample)
		if next := garbagePercent(sample[0].Value.Uint64()); next != percent {
			debug.SetGCPercent(next) // which stops the process for some microseconds
			percent = next
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
