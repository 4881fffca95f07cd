package redislimit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
)

// maxSettling is how many requests may have charges that are just being settled. Those of
// one beyond are left to lapse.
const maxSettling = 1024

// takeAll charges one group after the other. But for the last, what it takes is pending:
// where another request took the last units between the look and the charge, a later
// group refuses, and it goes back. Where all pass it is settled, for which nobody waits.
//
// An earlier attempt at the same request may have a charge pending where this one finds
// it done. As long as that may still go back, nothing is sure: the group is asked again,
// for good, once all others have passed.
func (s *Store) takeAll(ctx context.Context, t ratelimit.Take, groups []group) (ratelimit.Outcome, error) {
	out := ratelimit.Outcome{Allowed: true, Verdicts: make([]ratelimit.Verdict, len(t.Buckets)), Source: Redis, Repeated: true}
	var taken []done
	var unsure []group
	ask := func(g group, pending bool) error {
		part := t
		part.Buckets, part.Pending = g.buckets, pending
		decide := s.take
		if !out.Allowed {
			decide = func(ctx context.Context, t ratelimit.Take) (answer, error) { return s.look(ctx, t, g) }
		}
		answer, err := decide(ctx, part)
		if err != nil {
			s.giveBack(ctx, t, taken, nil)
			return s.broken(err, len(groups) > 1, len(taken) > 0)
		}
		g.spread(answer.Verdicts, out.Verdicts)
		out.Allowed, out.Repeated = out.Allowed && answer.Allowed, out.Repeated && answer.Repeated
		if answer.taken {
			taken = append(taken, done{g, answer.now, part.SlotID, pending})
		}
		if out.SlotID == "" || answer.Repeated {
			t.SlotID, out.SlotID = answer.SlotID, answer.SlotID
		}
		if answer.Pending {
			unsure = append(unsure, g)
		}
		return nil
	}
	for i, g := range groups {
		if err := ask(g, t.Pending || i < len(groups)-1 || len(unsure) > 0); err != nil {
			return ratelimit.Outcome{}, err
		}
	}
	for _, g := range slices.Clone(unsure) {
		if t.Pending || !out.Allowed {
			break
		}
		if err := ask(g, false); err != nil {
			return ratelimit.Outcome{}, err
		}
	}
	if !out.Allowed {
		out.SlotID = ""
		s.giveBack(ctx, t, taken, out.Verdicts)
		return out, nil
	}
	if out.Pending = t.Pending && len(unsure) > 0; !t.Pending {
		s.settle(ctx, t, taken)
	}
	return out, nil
}

// done is a group that was charged: when, the slot that it took, and whether it may go back.
type done struct {
	group
	at      int64
	slot    string
	pending bool
}

// broken says what a fault means between the groups. A charge of which nobody knows
// whether it was made may stay, and the others may not have gone back.
func (s *Store) broken(err error, several, charged bool) error {
	if several && errors.Is(err, keytype.ErrOutcomeUnknown) {
		s.opts.Leftover()
	}
	if charged {
		return fmt.Errorf("%w: %w", keytype.ErrOutcomeUnknown, err)
	}
	return err
}

// giveBack undoes what was taken before a later group refused or failed, and tells
// in verdicts what is left then.
func (s *Store) giveBack(ctx context.Context, t ratelimit.Take, taken []done, verdicts []ratelimit.Verdict) {
	for _, d := range taken {
		answer, err := s.end(ctx, t, d, ratelimit.Undone)
		if err != nil {
			s.opts.Leftover()
			continue
		}
		if d.refills() && !ratelimit.StillPending(d.at, answer.now) {
			s.opts.Leftover() // some of it
		}
		if verdicts != nil {
			d.spread(answer.Verdicts, verdicts)
		}
	}
}

// settle makes what was taken count for good. It does not wait for that: until it is done
// the charges take room all the same, but time does not pay them off.
func (s *Store) settle(ctx context.Context, t ratelimit.Take, taken []done) {
	taken = slices.DeleteFunc(taken, func(d done) bool { return !d.pending || t.Record == "" && !d.refills() })
	if len(taken) == 0 {
		return
	}
	select {
	case s.settling <- struct{}{}:
	default:
		for range taken {
			s.opts.Leftover()
		}
		return
	}
	go func() {
		defer func() { <-s.settling }()
		for _, d := range taken {
			if _, err := s.end(ctx, t, d, ratelimit.Settled); err != nil {
				s.opts.Leftover()
			}
		}
	}()
}

// Close waits for the charges that are just being settled, which the client's own timeouts
// end. The store must not be used afterwards.
func (s *Store) Close() error {
	for range cap(s.settling) {
		s.settling <- struct{}{}
	}
	return nil
}

// end says what becomes of a charge, whatever its caller waits for.
func (s *Store) end(ctx context.Context, t ratelimit.Take, d done, how ratelimit.End) (answer, error) {
	give := ratelimit.Give{Buckets: d.buckets, Cost: t.Cost, SlotID: d.slot, Now: t.Now, Charged: d.at, Record: t.Record, Ends: how}
	return s.run(context.WithoutCancel(ctx), call{
		op: string(how), buckets: d.buckets, cost: t.Cost, charged: d.at, slot: d.slot, now: t.Now, record: t.Record,
		decide: func(stored ratelimit.Stored, now int64) (ratelimit.Next, ratelimit.Outcome, error) {
			give.Now = now
			return give.Decide(stored)
		},
	})
}

// refills reports whether the group has a limit of which a charge is pending apart.
func (g group) refills() bool {
	return slices.ContainsFunc(g.buckets, func(b ratelimit.Bucket) bool { return isDebt(kinds[b.Rule.Algorithm]) })
}
