package quotatest

import (
	"time"

	"github.com/coordsvc/coordsvc/quota"
)

// A ledger keeps every entry for ever and adds them up for each answer: it knows
// no counters that could go wrong.
type ledger struct {
	def      *quota.Definition
	entries  []*entry
	receipts map[string]receipt // by window and request id
	limits   map[string]int64   // by window, as it was last seen under the definition of the time
}

// An entry is units that were taken.
type entry struct {
	frame       quota.Frame
	asked       int64
	amount      int64 // what of it is reserved or used now
	reservation string
	expires     time.Time
	open        bool // reserved
	lapsed      bool
	first       string // how its end was answered
}

type receipt struct {
	amount  int64
	reserve bool
	kept    time.Time
	first   string
}

func newLedger() *ledger { return &ledger{receipts: map[string]receipt{}, limits: map[string]int64{}} }

func (l *ledger) frame(now time.Time) quota.Frame {
	f, err := l.def.Frame(now)
	if err != nil {
		panic(err)
	}
	return f
}

// state adds up a window.
func (l *ledger) state(verdict, frame, reservation string, until time.Time) string {
	reserved, used, _ := l.sums(frame)
	limit := l.limits[frame]
	return answer(verdict, frame, limit, limit-reserved-used, reserved, used, reservation, until)
}

func (l *ledger) sums(frame string) (reserved, used, available int64) {
	for _, e := range l.entries {
		switch {
		case e.frame.ID != frame:
		case e.open:
			reserved += e.amount
		default:
			used += e.amount
		}
	}
	return reserved, used, l.limits[frame] - reserved - used
}

// see is the current window under the current limit.
func (l *ledger) see(now time.Time) quota.Frame {
	f := l.frame(now)
	l.limits[f.ID] = l.def.Limit
	return f
}

func (l *ledger) set(d quota.Definition, now time.Time) string {
	l.def = &d
	return l.state("done", l.see(now).ID, "", time.Time{})
}

func (l *ledger) get(now time.Time) string {
	if l.def == nil {
		return "unset"
	}
	before := l.limits[l.frame(now).ID]
	f := l.see(now)
	text := l.state("done", f.ID, "", time.Time{})
	l.limits[f.ID] = before // a read stores nothing
	return text
}

func (l *ledger) use(req quota.Use) string {
	if l.def == nil {
		return "unset"
	}
	f := l.frame(req.Now)
	key := f.ID + " " + req.RequestID
	if r, known := l.receipts[key]; known && r.kept.After(req.Now) {
		if r.amount != req.Amount || r.reserve != (req.Reservation != "") {
			return "mismatch"
		}
		return r.first
	}
	before := l.limits[f.ID]
	l.see(req.Now)
	if _, _, available := l.sums(f.ID); available < req.Amount {
		text := l.state("exceeded", f.ID, "", time.Time{})
		l.limits[f.ID] = before
		return text
	}
	e := &entry{frame: f, asked: req.Amount, amount: req.Amount, reservation: req.Reservation, open: req.Reservation != ""}
	kept := f.Ends
	if kept.IsZero() {
		kept = req.Now.Add(24 * time.Hour)
	}
	if e.open {
		e.expires = req.Now.Add(req.TTL)
	}
	l.entries = append(l.entries, e)
	text := l.state("done", f.ID, req.Reservation, e.expires)
	l.receipts[key] = receipt{req.Amount, e.open, kept, text}
	return text
}

func (l *ledger) settle(req quota.Settle) string {
	var e *entry
	for _, candidate := range l.entries {
		if candidate.reservation == req.Reservation {
			e = candidate
		}
	}
	if e == nil {
		return "no reservation"
	}
	want := int64(0)
	if req.Action == quota.Commit {
		want = req.Amount
		if want == 0 {
			want = e.asked
		}
	}
	overdue := e.open && !req.Now.Before(e.expires)
	switch {
	case req.Action == quota.Lapse && overdue:
		e.lapsed = true
		return l.end(e, 0)
	case req.Action == quota.Lapse:
		return "spared"
	case overdue || e.lapsed:
		return "expired"
	case !e.open && want == e.amount:
		return e.first
	case !e.open:
		return "mismatch"
	case want > e.asked:
		return "too much"
	}
	return l.end(e, want)
}

func (l *ledger) end(e *entry, used int64) string {
	e.open, e.amount = false, used
	e.first = l.state("done", e.frame.ID, "", time.Time{})
	return e.first
}
