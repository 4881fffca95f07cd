package ratelimit

// A log keeps every charge that lies within the Per before now, the oldest first.
type log []charge

type charge struct{ at, cost int64 }

func (r Rule) nextLog(packed []byte, now, cost int64) (State, Verdict, error) {
	l, at, changed, err := r.unpackLog(packed, now)
	if err != nil {
		return State{}, Verdict{}, err
	}
	wait := int64(0)
	if over := l.sum() + cost - r.Count; over > 0 && cost > 0 {
		wait = r.logWait(l, over) - now
	} else if cost > 0 {
		l, changed = l.with(charge{at, cost}), true
	}
	state, v := r.logVerdict(l, now, changed)
	v.Wait = micros(wait)
	return state, v, nil
}

// backLog takes what is put back off the latest charges, or off the one of a known instant.
func (r Rule) backLog(packed []byte, g Give) (State, Verdict, error) {
	l, _, changed, err := r.unpackLog(packed, g.Now)
	if err != nil {
		return State{}, Verdict{}, err
	}
	left := g.Cost
	for i := len(l) - 1; i >= 0 && left > 0; i-- {
		if g.Charged > 0 && l[i].at != g.Charged {
			continue
		}
		back := min(left, l[i].cost)
		l[i].cost, left, changed = l[i].cost-back, left-back, true
	}
	state, v := r.logVerdict(l, g.Now, changed)
	return state, v, nil
}

func (l log) sum() (units int64) {
	for _, c := range l {
		units += c.cost
	}
	return units
}

// with adds the latest charge.
func (l log) with(c charge) log {
	if n := len(l); n > 0 && l[n-1].at == c.at {
		l[n-1].cost += c.cost
		return l
	}
	return append(l, c)
}

// logWait is the instant at which as many units as are over have left the window.
func (r Rule) logWait(l log, over int64) int64 {
	for _, c := range l {
		if over -= c.cost; over <= 0 {
			return c.at + r.Per
		}
	}
	return 0 // cannot be: a cost is at most Count
}

func (r Rule) logVerdict(l log, now int64, changed bool) (State, Verdict) {
	full := now
	packed := []byte{format}
	last := int64(0)
	for _, c := range l {
		if c.cost > 0 {
			packed = appendNumber(appendNumber(packed, c.at-last), c.cost)
			full, last = c.at+r.Per, c.at
		}
	}
	v := Verdict{Remaining: max(0, r.Count-l.sum()), Reset: micros(max(0, full-now))}
	if !changed {
		return State{}, v
	}
	return State{Packed: packed, Full: full}, v
}

// unpackLog reads "1" and ":time:cost" of every charge, the first time since 1970
// and the others since the one before, and leaves out what is older than Per. It
// also says at which instant the log is: its time does not run backwards. But a
// clock that is behind by more than Per has been set, and all charges move with it.
func (r Rule) unpackLog(packed []byte, now int64) (l log, at int64, changed bool, err error) {
	if packed == nil {
		return nil, now, false, nil
	}
	rest, err := cutFormat(packed)
	if err != nil {
		return nil, 0, false, err
	}
	last := int64(0)
	for len(rest) > 0 {
		var n [2]int64
		if rest, err = cutNumbers(rest, n[:]); err != nil || n[1] < 1 || n[1] > MaxEntries || last+n[0] > 1<<53 {
			return nil, 0, false, errFormat
		}
		last += n[0]
		l = append(l, charge{last, n[1]})
	}
	if last > now+r.Per {
		for i := range l {
			l[i].at = max(0, l[i].at+now-last)
		}
		last, changed = now, true
	}
	at = max(now, last)
	gone := 0
	for gone < len(l) && l[gone].at <= at-r.Per {
		gone++
	}
	return l[gone:], at, changed, nil
}
