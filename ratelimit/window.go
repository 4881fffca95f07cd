package ratelimit

// A window counts units in windows of Per microseconds that follow each other from
// 1970 on. FixedWindow looks at the current one; SlidingWindowCounter adds the last
// one in proportion to how much of it lies within the Per before now, rounded up,
// as if its units had come evenly.
type window struct {
	seen     int64 // microseconds since 1970, within the current window
	cur, old int64 // units in the current window and in the one before
}

func (r Rule) nextWindow(packed []byte, now, cost int64) (State, Verdict, error) {
	w, changed, err := r.unpackWindow(packed, now)
	if err != nil {
		return State{}, Verdict{}, err
	}
	wait := int64(0)
	if w.cur+r.covered(w)+cost > r.Count && cost > 0 {
		wait = r.windowWait(w, cost) + w.seen - now
	} else {
		w.cur, changed = w.cur+cost, changed || cost > 0
	}
	state, v := r.windowVerdict(w, now, changed)
	v.Wait = micros(wait)
	return state, v, nil
}

// backWindow takes what is put back off the current window, and where that has not
// as much off the last one. Of a charge of a known instant nothing goes back into
// another window than its own.
func (r Rule) backWindow(packed []byte, g Give) (State, Verdict, error) {
	w, changed, err := r.unpackWindow(packed, g.Now)
	if err != nil {
		return State{}, Verdict{}, err
	}
	start := w.seen - w.seen%r.Per
	fromCur, fromOld := min(g.Cost, w.cur), int64(0)
	if g.Charged > 0 && g.Charged < start {
		fromCur = 0
	}
	if g.Charged == 0 || (g.Charged < start && g.Charged >= start-r.Per) {
		fromOld = min(g.Cost-fromCur, w.old)
	}
	if r.Algorithm == FixedWindow {
		fromOld = 0
	}
	w.cur, w.old = w.cur-fromCur, w.old-fromOld
	state, v := r.windowVerdict(w, g.Now, changed || fromCur+fromOld > 0)
	return state, v, nil
}

// covered is what the last window counts for at the instant seen.
func (r Rule) covered(w window) int64 {
	if r.Algorithm == FixedWindow {
		return 0
	}
	return mulDivCeil(w.old, r.Per-w.seen%r.Per, r.Per)
}

// windowWait is how long after seen a cost that does not pass then does, if nothing else comes.
func (r Rule) windowWait(w window, cost int64) int64 {
	elapsed := w.seen % r.Per
	if r.Algorithm == FixedWindow {
		if cost+w.cur > r.Count {
			return r.Per - elapsed
		}
		return 0
	}
	if room := r.Count - w.cur - cost; room >= 0 { // within this window, as the last one fades
		quo, _ := mulDiv(room, r.Per, w.old)
		return r.Per - quo - elapsed
	}
	quo, _ := mulDiv(r.Count-cost, r.Per, w.cur) // in the next, as this one fades
	return r.Per - elapsed + r.Per - min(quo, r.Per)
}

func (r Rule) windowVerdict(w window, now int64, changed bool) (State, Verdict) {
	v := Verdict{
		Remaining: max(0, r.Count-w.cur-r.covered(w)),
		Reset:     micros(max(0, r.windowFull(w)-now)),
	}
	if !changed {
		return State{}, v
	}
	return State{Packed: packNumbers(w.seen, w.cur, w.old, r.Per), Full: max(r.windowFull(w), w.seen)}, v
}

// windowFull is when nothing of the window counts any more.
func (r Rule) windowFull(w window) int64 {
	end := w.seen - w.seen%r.Per + r.Per
	switch {
	case w.cur > 0 && r.Algorithm == SlidingWindowCounter:
		return end + r.Per
	case w.cur > 0, w.old > 0 && r.Algorithm == SlidingWindowCounter:
		return end
	default:
		return w.seen
	}
}

// unpackWindow reads "1:seen:cur:old:Per" and brings it to the instant now. Its time
// does not run backwards: while a clock is behind seen, the window stays as it was
// then. But a clock that is behind by more than two windows has been set, and the
// units count from there.
//
// A window of another length is brought to now as it was counted, and what then
// counts of it begins the new one.
func (r Rule) unpackWindow(packed []byte, now int64) (w window, changed bool, err error) {
	if packed == nil {
		return window{seen: now}, false, nil
	}
	rest, err := cutFormat(packed)
	if err != nil {
		return window{}, false, err
	}
	var n [4]int64
	if rest, err = cutNumbers(rest, n[:]); err != nil {
		return window{}, false, err
	}
	w = window{seen: n[0], cur: n[1], old: n[2]}
	if len(rest) > 0 || n[3] < 1 || n[3] > maxPer.Microseconds() || w.cur > maxCount || w.old > maxCount {
		return window{}, false, errFormat
	}
	from := r
	from.Per = n[3]
	w, changed = from.windowAt(w, now)
	if from.Per != r.Per {
		w = window{seen: w.seen, cur: min(maxCount, w.cur+from.covered(w))}
	}
	return w, changed, nil
}

func (r Rule) windowAt(w window, now int64) (moved window, changed bool) {
	switch {
	case now < w.seen-2*r.Per:
		return window{seen: now, cur: w.cur, old: w.old}, true
	case now <= w.seen:
		return w, false
	}
	switch now/r.Per - w.seen/r.Per {
	case 0:
		return window{seen: now, cur: w.cur, old: w.old}, false
	case 1:
		return window{seen: now, old: w.cur}, false
	default:
		return window{seen: now}, false
	}
}
