package drill

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/coordsvc/coordsvc/api"
)

// limits checks one key over all nodes, faster than it may go.
type limits struct {
	*pillar
	took time.Duration

	passed  map[string]int64 // by source; guarded by mu
	refused int64            // guarded by mu
}

func (l *limits) live(ctx context.Context, d *Drill, _ int) {
	var decision api.RateLimitDecision
	err := l.call(func() (err error) {
		decision, err = d.node().Check(ctx, api.RateLimitRequest{Policy: "drill", Descriptors: api.Descriptors{"app": "a"}})
		return err
	})
	l.mu.Lock()
	switch {
	case err != nil:
	case decision.Allowed:
		l.passed[string(decision.Source)]++
	case decision.Source == api.SourceFailClosed: // the client's own posture
		l.failed++
	default:
		l.refused++
	}
	l.mu.Unlock()
	pause(60 * time.Millisecond)
}

// Faults are what the stores and nodes went through, for the bound of what limits may let pass.
type Faults struct {
	Losses int // of what Redis had counted: each is one fresh burst
	Lives  int // of nodes: each begins with a burst of its own rate
	Nodes  int
}

// facts compares what passed with what may.
func (l *limits) facts(limit int64, f Faults) string {
	seconds := int64(l.took.Seconds()) + 1
	said := []string{fmt.Sprintf("%d refused", l.refused)}
	for _, b := range []struct {
		source string
		most   int64
	}{
		{"redis", limit*seconds + limit*int64(1+f.Losses)},
		{"local", limit/10*seconds*int64(f.Nodes) + limit/10*int64(f.Lives)},
	} {
		n := l.passed[b.source]
		delete(l.passed, b.source)
		if n > b.most {
			l.breaks(fmt.Sprintf("%s let %d pass, more than %d", b.source, n, b.most))
		}
		said = append(said, fmt.Sprintf("%s let %d pass (bound %d)", b.source, n, b.most))
	}
	for source, n := range l.passed {
		l.breaks(fmt.Sprintf("%s let %d pass, against the policy", source, n))
	}
	return strings.Join(said, "; ")
}
