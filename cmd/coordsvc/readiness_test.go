package main

import (
	"errors"
	"testing"
)

func TestReadinessEndsForGood(t *testing.T) {
	starting := errors.New("starting")
	r := &readiness{reason: starting}
	if err := r.get(); !errors.Is(err, starting) {
		t.Errorf("before: %v", err)
	}
	if !r.set(nil) || r.get() != nil {
		t.Errorf("ready: %v", r.get())
	}
	r.end()
	if r.set(nil) || r.get() == nil {
		t.Errorf("ready again after the end: %v", r.get())
	}
}
