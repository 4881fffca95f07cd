package quota

import "time"

// receiptLife is how long a request id is remembered where the window never ends,
// and at least how long the end of a reservation is.
const receiptLife = 24 * time.Hour

// A Setting is what is remembered of what the operator set. The zero one stands
// for a quota that was never set.
type Setting struct {
	Definition
	Revision int64 `json:"revision"` // rises with every change
}

// An Account holds the units of one window: available + reserved + used = limit.
// The zero one stands for a window that nothing has happened in.
type Account struct {
	Frame
	Revision  int64 `json:"revision"` // of the setting that the limit is from
	Limit     int64 `json:"limit"`
	Available int64 `json:"available"` // below 0 only after the limit was lowered
	Reserved  int64 `json:"reserved"`
	Used      int64 `json:"used"`
}

// Gone is when the account may be removed, zero = never.
func (a Account) Gone() time.Time {
	if a.Ends.IsZero() {
		return time.Time{}
	}
	return a.Ends.Add(Retention)
}

// A Receipt is what is remembered of a request that took units.
type Receipt struct {
	Amount        int64     `json:"amount"`
	Reservation   string    `json:"reservation,omitempty"` // empty where the units were consumed at once
	ReservedUntil time.Time `json:"reserved_until"`
	Account       Account   `json:"account"` // as the request left it
	Kept          time.Time `json:"kept"`    // forgotten from here on
}

// A Phase is where a reservation stands.
type Phase int

// The phases. All but Active are final.
const (
	Active  Phase = iota + 1
	Settled       // committed, or cancelled, which is to commit nothing
	Lapsed        // expired, and its units returned
)

// A Reservation is units set aside. The zero one stands for none.
type Reservation struct {
	ID      string    `json:"id"`
	Frame   string    `json:"frame"` // the id of the window whose units they are
	Amount  int64     `json:"amount"`
	Expires time.Time `json:"expires"`
	Phase   Phase     `json:"phase"`
	Used    int64     `json:"used"`    // once settled
	Account Account   `json:"account"` // as its end left it
	Kept    time.Time `json:"kept"`    // once ended: forgotten from here on
}

// A State is all that one step is decided on. A store fills in what the step
// concerns: the account of Frame, the receipt of the request id in that window,
// the reservation.
type State struct {
	Setting     Setting
	Frame       Frame
	Account     Account
	Receipt     Receipt
	Reservation Reservation
}

// A Use is what the manager hands its store to take units. Times are in whole milliseconds.
type Use struct {
	Amount      int64
	RequestID   string
	Now         time.Time
	Reservation string        // the id of the reservation to make, new with every call; empty to use the units at once
	TTL         time.Duration // of the reservation
}

// An Action ends a reservation.
type Action int

// The actions.
const (
	Commit Action = iota + 1 // some or all of the units were used, the rest returns
	Cancel                   // none was used
	Lapse                    // the sweeper's: it has expired
)

// A Settle is what the manager hands its store to end a reservation.
type Settle struct {
	Reservation string
	Action      Action
	Amount      int64 // of a commit, 0 = all that is reserved
	Now         time.Time
}

// A Verdict is how a store decided.
type Verdict int

// The verdicts.
const (
	Done          Verdict = iota + 1
	Unset                 // the quota was never set
	Exceeded              // fewer units are available
	Mismatch              // the request, or the reservation, had another first result
	NoReservation         // there is none of this id, or not any more
	Expired               // the reservation has expired
	TooMuch               // more than is reserved
	Spared                // a sweeper came too late, or too early
)

// An Outcome is a store's answer.
type Outcome struct {
	Verdict     Verdict
	Account     Account // as the step left it: a repeated step shows what the first one left
	Reservation string
	Until       time.Time // the reservation's expiry
	Reserved    int64     // what the reservation holds, with TooMuch
}

// Get shows the window as it stands.
func (s State) Get() Outcome {
	if s.Setting.Revision == 0 {
		return Outcome{Verdict: Unset}
	}
	return Outcome{Verdict: Done, Account: s.current()}
}

// Set changes the limit or the window. What is reserved and used in the window
// stays so. Frame and Account are those of the new definition's window.
func (s State) Set(d Definition) (State, Outcome) {
	if s.Setting.Revision == 0 || s.Setting.Definition != d {
		s.Setting = Setting{Definition: d, Revision: s.Setting.Revision + 1}
	}
	s.Account = s.current()
	return s, Outcome{Verdict: Done, Account: s.Account}
}

// Use decides whether the units are there, and takes them.
func (s State) Use(req Use) (State, Outcome) {
	if s.Setting.Revision == 0 {
		return s, Outcome{Verdict: Unset}
	}
	if r := s.Receipt; r.Kept.After(req.Now) {
		if r.Amount != req.Amount || (r.Reservation == "") != (req.Reservation == "") {
			return s, Outcome{Verdict: Mismatch}
		}
		return s, Outcome{Verdict: Done, Account: r.Account, Reservation: r.Reservation, Until: r.ReservedUntil}
	}
	a := s.current()
	if a.Available < req.Amount {
		return s, Outcome{Verdict: Exceeded, Account: a}
	}
	a.Available -= req.Amount
	var until time.Time
	if req.Reservation == "" {
		a.Used += req.Amount
	} else {
		a.Reserved += req.Amount
		until = req.Now.Add(req.TTL)
		s.Reservation = Reservation{ID: req.Reservation, Frame: a.ID, Amount: req.Amount, Expires: until, Phase: Active}
	}
	s.Account = a
	s.Receipt = Receipt{Amount: req.Amount, Reservation: req.Reservation, ReservedUntil: until, Account: a, Kept: a.Ends}
	if a.Ends.IsZero() {
		s.Receipt.Kept = req.Now.Add(receiptLife)
	}
	return s, Outcome{Verdict: Done, Account: a, Reservation: req.Reservation, Until: until}
}

// Settle decides how the reservation ends. The account is that of the
// reservation's window; it may be gone, long after that window.
func (s State) Settle(req Settle) (State, Outcome) {
	r, used := s.Reservation, req.used(s.Reservation)
	overdue := r.Phase == Active && !r.Expires.After(req.Now)
	switch {
	case r.Phase == 0:
		return s, Outcome{Verdict: NoReservation}
	case req.Action == Lapse && !overdue:
		return s, Outcome{Verdict: Spared}
	case req.Action == Lapse:
		return s.end(req, Lapsed, 0)
	case r.Phase == Lapsed, overdue:
		return s, Outcome{Verdict: Expired}
	case r.Phase == Settled && r.Used != used:
		return s, Outcome{Verdict: Mismatch}
	case r.Phase == Settled:
		return s, Outcome{Verdict: Done, Account: r.Account}
	case used > r.Amount:
		return s, Outcome{Verdict: TooMuch, Reserved: r.Amount}
	}
	return s.end(req, Settled, used)
}

// used is what the action leaves used of the reservation.
func (req Settle) used(r Reservation) int64 {
	switch {
	case req.Action != Commit:
		return 0
	case req.Amount == 0:
		return r.Amount
	default:
		return req.Amount
	}
}

// end returns what was not used.
func (s State) end(req Settle, phase Phase, used int64) (State, Outcome) {
	r, a := &s.Reservation, &s.Account
	if a.ID != "" {
		a.Reserved -= r.Amount
		a.Used += used
		a.Available += r.Amount - used
	}
	r.Phase, r.Used, r.Account, r.Kept = phase, used, *a, req.Now.Add(receiptLife)
	if a.Ends.After(r.Kept) {
		r.Kept = a.Ends
	}
	return s, Outcome{Verdict: Done, Account: *a}
}

// current is the account under the setting. A limit that was changed since the
// account was last written moves what is available, nothing else.
func (s State) current() Account {
	a := s.Account
	if a.ID == "" {
		a.Frame = s.Frame
	}
	if a.Revision < s.Setting.Revision {
		a.Revision, a.Limit, a.Zone = s.Setting.Revision, s.Setting.Limit, s.Setting.Zone // another zone of the same window moves nothing
		a.Available = a.Limit - a.Reserved - a.Used
	}
	return a
}
