package app

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"fairlead.dev/pkg/ops"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/aggregate"
	"fairlead.dev/services/config-watcher/internal/analysis/background"
	"fairlead.dev/services/config-watcher/internal/credential"
	"fairlead.dev/services/config-watcher/internal/fleet"
	"fairlead.dev/services/config-watcher/internal/gatewayname"
	"fairlead.dev/services/config-watcher/internal/jwks"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/revision"
	"fairlead.dev/services/config-watcher/internal/source/consul"
	"fairlead.dev/services/config-watcher/internal/status"
)

// sourceState is a source as /readyz/sources and /debug/sources show it.
type sourceState struct {
	Name     string `json:"name"`
	Synced   bool   `json:"synced"`
	Degraded string `json:"degraded,omitempty"`
	// LastGood is when the last good state was saved, while that is served because nothing was read since the start.
	LastGood *time.Time `json:"last_good,omitempty"`
	// Alarm says that the source takes no writes.
	Alarm   string `json:"alarm,omitempty"`
	Objects int    `json:"objects"`
	Refused int    `json:"refused"`
	// Held counts the placeholders of broken security objects, which keep the workloads of these closed.
	Held     int      `json:"held_closed,omitempty"`
	Problems []string `json:"problems,omitempty"`
	// Duplicates are objects that stand in two files; the first file counts.
	Duplicates []string `json:"duplicates,omitempty"`
	// Unread counts objects of kinds without an effect; UnreadObjects names them, up to source.MaxUnread.
	Unread        int      `json:"unread,omitempty"`
	UnreadObjects []string `json:"unread_objects,omitempty"`
	// Unwritten says that the statuses of some objects cannot be written back.
	Unwritten string `json:"status_unwritten,omitempty"`
	// DegradedKinds are the kinds that cannot be read now, of a source that can lose one alone.
	DegradedKinds []kindState `json:"degraded_kinds,omitempty"`
	// Versions are the resource versions up to which an API server was read, by kind; for administrators.
	Versions map[string]string `json:"versions,omitempty"`
	// Withheld is what a reading of the source lacked and what stays until a second one lacks it too.
	Withheld []withheldState `json:"withheld,omitempty"`
	// Staying are the files whose objects stay although the file is gone, empty or cut off.
	Staying []stayingState `json:"staying,omitempty"`
}

// kindState is a kind that cannot be read now.
type kindState struct {
	Kind    string    `json:"kind"`
	Objects int       `json:"objects"`
	Reason  string    `json:"reason"`
	Since   time.Time `json:"since"`
	// Text names the objects and the API server's words; it is for administrators.
	Text string `json:"text,omitempty"`
}

// withheldState is a part of a source of which objects are withheld.
type withheldState struct {
	What    string    `json:"what"`
	Objects int       `json:"objects"`
	InForce int       `json:"in_force"`
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until"`
}

// stayingState is a file whose objects stay for its grace period.
type stayingState struct {
	Objects int       `json:"objects"`
	Until   time.Time `json:"until"`
	// File and Text, which names its objects, are for administrators.
	File string `json:"file,omitempty"`
	Text string `json:"text,omitempty"`
}

// pages are those under /readyz and /debug.
type pages struct {
	sources   *sources
	statuses  *status.Tracker
	joined    *aggregate.Aggregate
	findings  *background.Analyzer
	secrets   *credential.Table
	keys      *jwks.Table
	names     *gatewayname.Table
	fleet     *fleet.Table
	revisions *revision.Log
	unsaved   func() error
}

func (p *pages) sourceStates(withProblems bool) []sourceState {
	told := func(err error, briefly string) string {
		switch {
		case err == nil:
			return ""
		case withProblems:
			return err.Error()
		}
		return briefly
	}
	out := []sourceState{}
	for _, src := range p.sources.each() {
		st := src.Status()
		row := sourceState{Name: src.Name(), Synced: st.Synced, Objects: st.Objects, Refused: len(st.Problems), Held: st.Held,
			Unread: st.UnreadTotal}
		for _, w := range st.Withheld {
			row.Withheld = append(row.Withheld, withheldState(w))
		}
		for _, f := range st.Staying {
			staying := stayingState{Objects: len(f.Objects), Until: f.Until}
			if withProblems {
				staying.File, staying.Text = f.File, f.String()
			}
			row.Staying = append(row.Staying, staying)
		}
		for _, k := range st.Kinds {
			if k.Degraded == nil {
				continue
			}
			kind := kindState{Kind: k.Name, Objects: k.Objects, Reason: k.Reason, Since: k.Since}
			if withProblems {
				kind.Text = k.Degraded.Error()
			}
			row.DegradedKinds = append(row.DegradedKinds, kind)
		}
		if !st.LastGood.IsZero() {
			row.LastGood = &st.LastGood
		}
		if st.Alarm != nil {
			row.Alarm = "takes no writes; objects can be deleted"
			if withProblems {
				row.Alarm += ": " + st.Alarm.Error()
			}
		}
		row.Unwritten = told(p.statuses.Unwritten(src.Name()), "the status of objects cannot be written")
		row.Degraded = told(st.Degraded, "cannot be read")
		if withProblems {
			row.Versions = st.Versions
			row.Problems, row.Duplicates, row.UnreadObjects = texts(st.Problems.Sorted()), texts(st.Duplicates.Sorted()), texts(st.Unread)
		}
		out = append(out, row)
	}
	return out
}

func texts(ps object.Problems) []string {
	out := make([]string, len(ps))
	for i, p := range ps {
		out[i] = p.Error()
	}
	return out
}

// sourcesPage is the answer of /debug/sources.
type sourcesPage struct {
	Sources   []sourceState        `json:"sources"`
	Conflicts []aggregate.Conflict `json:"conflicts"`
	// Warnings name what is accepted and has no effect.
	Warnings []string `json:"warnings"`
	// Findings of package running, at most maxFindings.
	Findings []string `json:"findings"`
	// Registries are the declarations of registries.
	Registries []consul.Row `json:"registries,omitempty"`
	// Unsaved says why the sources' last good state is not on disk.
	Unsaved string `json:"unsaved,omitempty"`
}

// resourcesPage is the answer of /debug/resources.
type resourcesPage struct {
	Revision  json.RawMessage   `json:"revision"`
	Total     int               `json:"total"`
	Resources []json.RawMessage `json:"resources"`
	// Next is the offset of the next page, 0 if this is the last.
	Next int `json:"next,omitempty"`
}

// maxFindings bounds the findings on /debug/sources.
const maxFindings = 1000

// pageSize bounds one answer of /debug/resources.
const pageSize = 500

func (p *pages) register(s *ops.Server) {
	s.Public("/readyz/sources", "state of each source; a degraded one does not make the service unready",
		ops.JSON(func(*http.Request) (any, error) {
			return p.sourceStates(false), nil
		}))
	s.Debug("/debug/sources", "state of each source, refused objects and why, objects in several sources, of kinds that nobody reads, "+
		"or of files that are gone, fields without an effect, references to what is not there", ops.JSON(func(*http.Request) (any, error) {
		page := sourcesPage{Sources: p.sourceStates(true), Conflicts: p.joined.Conflicts(), Warnings: texts(p.joined.Warnings()),
			Findings: []string{}}
		for i, f := range p.findings.All() {
			if i == maxFindings {
				break
			}
			page.Findings = append(page.Findings, f.Error())
		}
		if r := p.sources.registries; r != nil {
			page.Registries = r.List()
		}
		if err := p.unsaved(); err != nil {
			page.Unsaved = err.Error()
		}
		return page, nil
	}))
	s.Debug("/debug/resources", "the normalised mesh: ?kind= ?namespace= ?name= ?offset=", ops.JSON(p.resources))
	s.Debug("/debug/credentials", "TLS credentials of gateways: whose they are and until when they are valid, nothing of their content",
		ops.JSON(func(*http.Request) (any, error) { return p.secrets.Summaries(), nil }))
	s.Debug("/debug/jwks", "keys that verify tokens: where they come from, how fresh they are, why they cannot be fetched",
		ops.JSON(func(*http.Request) (any, error) { return p.keys.States(), nil }))
	s.Debug("/debug/gateway-names", "host names of other networks' gateways: their addresses, and why they cannot be looked up",
		ops.JSON(func(*http.Request) (any, error) { return p.names.States(), nil }))
	s.Debug("/debug/fleet", "proxies as the xds-servers report them", ops.JSON(func(r *http.Request) (any, error) {
		out := []json.RawMessage{}
		for _, proxy := range p.fleet.List(r.URL.Query().Get("namespace")) {
			js, err := protojson.Marshal(proxy)
			if err != nil {
				return nil, err
			}
			out = append(out, js)
		}
		return out, nil
	}))
}

func (p *pages) resources(r *http.Request) (any, error) {
	q := r.URL.Query()
	offset, _ := strconv.Atoi(q.Get("offset"))
	snapshot, _ := p.revisions.Current()
	if snapshot == nil {
		return nil, fmt.Errorf("no revision yet: %w", p.sources.ready(p.revisions))
	}
	page := resourcesPage{Resources: []json.RawMessage{}}
	var err error
	if page.Revision, err = protojson.Marshal(snapshot.Revision()); err != nil {
		return nil, err
	}
	match := func(want, got string) bool { return want == "" || want == got }
	snapshot.Each(func(k resource.Key, res *configv1.Resource) bool {
		if !match(q.Get("kind"), k.Kind) || !match(q.Get("namespace"), k.Namespace) || !match(q.Get("name"), k.Name) {
			return true
		}
		if page.Total++; page.Total <= offset {
			return true
		}
		if len(page.Resources) >= pageSize {
			page.Next = offset + pageSize
			return true
		}
		var js []byte
		if res, err = resource.Decoded(res); err == nil {
			js, err = protojson.Marshal(res)
		}
		if err != nil {
			return false
		}
		page.Resources = append(page.Resources, js)
		return true
	})
	return page, err
}
