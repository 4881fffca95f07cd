package drill

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Report writes what each pillar did and kept, and returns every promise that did
// not hold; so also that nothing was put to the test.
func (d *Drill) Report(w io.Writer, f Faults) (broken []string) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "pillar\tcalls\tfailed\trequests\tlongest answer\trequests that were not granted, by code")
	facts := []string{d.sessions.facts(), d.leases.facts(), d.limits.facts(d.limit, f), d.quotas.facts()}
	pillars := d.pillars()
	for _, p := range pillars {
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%v\t%s\n", p.name, p.calls, p.failed, p.requests, p.longest.Round(time.Millisecond), p.errors())
	}
	if err := table.Flush(); err != nil {
		broken = append(broken, "the report was not written: "+err.Error())
	}
	for i, p := range pillars {
		fmt.Fprintf(w, "%s: %s\n", p.name, facts[i])
		if p.longest > Answer+time.Second { // that a lease waits in line
			p.breaks(fmt.Sprintf("an answer took %v, more than %v", p.longest, Answer))
		}
		broken = append(broken, p.broken...)
	}
	if len(d.sessions.ended) < 20 || d.leases.grants < 20 || d.limits.refused < 20 || len(d.quotas.subjects) < 2 {
		broken = append(broken, "too little was done to tell")
	}
	return broken
}

func (p *pillar) errors() string {
	var parts []string
	for _, code := range slices.Sorted(maps.Keys(p.codes)) {
		parts = append(parts, fmt.Sprintf("%s %d", code, p.codes[code]))
	}
	return strings.Join(parts, ", ")
}
