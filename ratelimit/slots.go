package ratelimit

import "slices"

// A slot is what one request holds of a Concurrency limit.
type slot struct {
	expires int64
	cost    int64
	id      string
}

func (r Rule) nextSlots(packed []byte, now, cost int64, id string) (State, Verdict, error) {
	slots, changed, err := r.unpackSlots(packed, now)
	if err != nil {
		return State{}, Verdict{}, err
	}
	wait := int64(0)
	others := slices.DeleteFunc(slices.Clone(slots), func(s slot) bool { return s.id == id }) // the new one takes its place
	if over := held(others) + cost - r.Burst; over > 0 && cost > 0 {
		wait = slotWait(others, over) - now
	} else if cost > 0 {
		others = append(others, slot{now + r.Per, cost, id})
		slots, changed = others, true
	}
	state, v := r.slotVerdict(slots, now, changed)
	v.Wait = micros(wait)
	return state, v, nil
}

// backSlots frees the slots of that name.
func (r Rule) backSlots(packed []byte, g Give) (State, Verdict, error) {
	slots, changed, err := r.unpackSlots(packed, g.Now)
	if err != nil {
		return State{}, Verdict{}, err
	}
	kept := slices.DeleteFunc(slots, func(s slot) bool { return s.id == g.SlotID })
	state, v := r.slotVerdict(kept, g.Now, changed || len(kept) < len(slots))
	return state, v, nil
}

func held(slots []slot) (units int64) {
	for _, s := range slots {
		units += s.cost
	}
	return units
}

// slotWait is the instant at which as many units as are over have expired.
func slotWait(slots []slot, over int64) int64 {
	byExpiry := slices.SortedFunc(slices.Values(slots), func(a, b slot) int { return int(a.expires - b.expires) })
	for _, s := range byExpiry {
		if over -= s.cost; over <= 0 {
			return s.expires
		}
	}
	return 0 // cannot be: a cost is at most Burst
}

func (r Rule) slotVerdict(slots []slot, now int64, changed bool) (State, Verdict) {
	full := now
	packed := []byte{format}
	for _, s := range slots {
		packed = appendNumber(appendNumber(packed, s.expires), s.cost)
		packed = append(append(packed, ':'), s.id...)
		full = max(full, s.expires)
	}
	v := Verdict{Remaining: max(0, r.Burst-held(slots)), Reset: micros(full - now)}
	if !changed {
		return State{}, v
	}
	return State{Packed: packed, Full: full}, v
}

// unpackSlots reads "1" and ":expires:cost:id" of every slot, and leaves out those
// that have expired. None lasts longer than Per from now on, whatever a clock said
// when it was taken.
func (r Rule) unpackSlots(packed []byte, now int64) (slots []slot, changed bool, err error) {
	if packed == nil {
		return nil, false, nil
	}
	rest, err := cutFormat(packed)
	if err != nil {
		return nil, false, err
	}
	for len(rest) > 0 {
		var n [2]int64
		if rest, err = cutNumbers(rest, n[:]); err != nil {
			return nil, false, err
		}
		id, after, ok := cutText(rest)
		if !ok || n[1] < 1 || n[1] > MaxEntries {
			return nil, false, errFormat
		}
		rest = after
		if n[0] > now+r.Per {
			n[0], changed = now+r.Per, true
		}
		if n[0] > now {
			slots = append(slots, slot{n[0], n[1], id})
		}
	}
	return slots, changed, nil
}
