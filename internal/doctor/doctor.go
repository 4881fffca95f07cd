// Package doctor decides what of a set-up is wrong, before somebody meets it: it
// looks, asks, and tries what has no effect.
package doctor

import (
	"fmt"
	"io"
	"slices"

	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
)

// A Status says what was found.
type Status string

// What is found. A fault makes the service fail, or hold less than it promises; a
// warning costs something on a bad day; what could not be found out is unknown.
const (
	OK      Status = "ok"
	Unknown Status = "unknown"
	Warning Status = "warning"
	Fault   Status = "fault"
)

// A Finding is the result of one check. Its texts hold no secret.
type Finding struct {
	Check   string `json:"check"`   // what was looked for, from a fixed list
	Subject string `json:"subject"` // at what: a key type, a policy, a table, an address
	Status  Status `json:"status"`
	Detail  string `json:"detail"`
	Fix     string `json:"fix,omitempty"` // what to do, where there is something
}

// found makes a finding: bad where the check failed.
func found(check, subject string, bad Status, failed bool, detail, fix string) Finding {
	if !failed {
		return Finding{Check: check, Subject: subject, Status: OK, Detail: detail}
	}
	return Finding{check, subject, bad, detail, fix}
}

// A Report is what all checks found.
type Report struct {
	Faults   int       `json:"faults"`
	Warnings int       `json:"warnings"`
	Unknown  int       `json:"unknown"`
	Findings []Finding `json:"findings"`
}

// NewReport counts the findings.
func NewReport(findings []Finding) Report {
	r := Report{Findings: findings}
	for _, f := range findings {
		switch f.Status {
		case Fault:
			r.Faults++
		case Warning:
			r.Warnings++
		case Unknown:
			r.Unknown++
		case OK:
		}
	}
	return r
}

// Write writes the report for people, the worst first.
func (r Report) Write(w io.Writer) {
	order := []Status{Fault, Warning, Unknown, OK}
	sorted := slices.SortedStableFunc(slices.Values(r.Findings), func(a, b Finding) int {
		return slices.Index(order, a.Status) - slices.Index(order, b.Status)
	})
	for _, f := range sorted {
		fmt.Fprintf(w, "%-8s %s: %s: %s\n", f.Status, f.Check, f.Subject, f.Detail)
		if f.Fix != "" {
			fmt.Fprintf(w, "         fix: %s\n", f.Fix)
		}
	}
	fmt.Fprintf(w, "%d faults, %d warnings, %d not found out, %d checks\n", r.Faults, r.Warnings, r.Unknown, len(r.Findings))
}

// KeyTypes checks that of each type is said who owns it, when its keys may go, and
// what happens when its store fails.
func KeyTypes(types []*keytype.Type) (all []Finding) {
	for _, t := range types {
		missing := ""
		switch "" {
		case t.Owner:
			missing = "an owner"
		case t.TTL:
			missing = "a TTL rule"
		case t.OnStoreFailure:
			missing = "a posture for its store's failure"
		}
		detail := "owned by " + t.Owner
		if missing != "" {
			detail = "lacks " + missing
		}
		all = append(all, found("key type", t.Name, Fault, missing != "", detail, "register it whole"))
	}
	return all
}

// Policies checks that each policy has somebody to ask. That it has a posture is what
// makes it a policy.
func Policies(policies []ratelimit.Policy) (all []Finding) {
	for _, p := range policies {
		detail := fmt.Sprintf("stage %s, posture %s", p.Stage, p.Posture)
		all = append(all, found("policy", p.Name, Fault, p.Posture == "", detail, "set on_store_failure"))
		if p.Owner == "" {
			all = append(all, Finding{"policy owner", p.Name, Warning, "nobody is named", "set owner in its file"})
		}
	}
	return all
}
