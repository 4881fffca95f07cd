package main

import (
	"runtime/debug"
	"testing"
)

func TestGarbageIsBounded(t *testing.T) {
	for _, c := range []struct {
		inUse uint64
		want  int
	}{
		{0, 400}, {10 << 20, 400}, {64 << 20, 400}, {128 << 20, 200}, {200 << 20, 128}, {256 << 20, 100}, {8 << 30, 100},
	} {
		if got := garbagePercent(c.inUse); got != c.want {
			t.Errorf("%d bytes in use: %d %%, want %d %%", c.inUse, got, c.want)
		}
	}
}

func TestGOGCIsHeeded(t *testing.T) {
	before := debug.SetGCPercent(77)
	defer debug.SetGCPercent(before)
	boundGarbage(t.Context(), func(string) string { return "77" })
	if got := debug.SetGCPercent(77); got != 77 {
		t.Errorf("GOGC=77 became %d", got)
	}
}
