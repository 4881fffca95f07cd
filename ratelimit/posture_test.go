package ratelimit_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/ratelimit"
)

// Where the stage lets no refusal count, none does while the store fails either,
// and a canary refuses those whom it refuses with a store.
func TestR26PosturesByStage(t *testing.T) {
	for _, posture := range []ratelimit.Posture{ratelimit.FailOpen, ratelimit.FailClosed, ratelimit.Local} {
		for _, stage := range []ratelimit.Stage{ratelimit.Shadow, ratelimit.Warn, ratelimit.Canary, ratelimit.Enforce} {
			t.Run(fmt.Sprint(posture, " ", stage), func(t *testing.T) { postureByStage(t, posture, stage) })
		}
	}
}

func postureByStage(t *testing.T, posture ratelimit.Posture, stage ratelimit.Stage) {
	p := newPatient()
	one := policy(ratelimit.Limit{
		Name: "l", Key: []string{"user"}, Algorithm: ratelimit.FixedWindow,
		Numbers: ratelimit.Numbers{Rate: ratelimit.Rate{Count: 1, Per: 24 * time.Hour}},
	})
	one.Posture, one.Stage = posture, stage
	if stage == ratelimit.Canary {
		one.Percent = 50
	}
	var told ratelimit.Decision
	limits, err := ratelimit.New(p, []ratelimit.Policy{one}, ratelimit.Options{
		Decided:  func(d ratelimit.Decision) { told = d },
		Now:      func() time.Time { return time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC) },
		Fallback: ratelimit.NewLocal(openMemory(t)),
	})
	if err != nil {
		t.Fatal(err)
	}
	second := func(user string) (d ratelimit.Decision, err error) {
		for range 2 {
			d, err = limits.Check(t.Context(), "t", ratelimit.Request{Policy: one.Name, Cost: 1, Descriptors: map[string]string{"user": user}})
		}
		return d, err
	}
	const users = 40
	var counts [users]bool
	refused := 0
	for i := range users {
		d, err := second(fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		if counts[i] = !d.Allowed; counts[i] {
			refused++
		}
	}
	if some := refused > 0; some != (stage == ratelimit.Canary || stage == ratelimit.Enforce) || (refused == users) != (stage == ratelimit.Enforce) {
		t.Fatalf("%d of %d are refused with a store", refused, users)
	}
	p.falls(errDown, 0)
	for i := range users {
		d, err := second(fmt.Sprint(i))
		if posture == ratelimit.FailClosed && counts[i] {
			if _, ok := errors.AsType[*ratelimit.ClosedError](err); !ok {
				t.Errorf("user %d counts: got %+v, %v", i, d, err)
			}
			if told.Allowed || told.Source != ratelimit.SourceFailClosed || told.Policy != one.Name || told.Stage != stage {
				t.Errorf("user %d is told of as %+v", i, told)
			}
			continue
		}
		passes, source := true, ratelimit.SourceFailOpen
		if posture == ratelimit.Local {
			passes, source = !counts[i], ratelimit.SourceLocal
		}
		if err != nil || d.Allowed != passes || !d.Degraded || d.DegradedReason != "readonly" || d.Source != source || d.Stage != stage {
			t.Errorf("user %d, of whom a refusal counts %t: got %+v, %v", i, counts[i], d, err)
		}
		if told.Allowed != passes || told.Source != source || told.Stage != stage {
			t.Errorf("user %d is told of as %+v", i, told)
		}
	}
}
