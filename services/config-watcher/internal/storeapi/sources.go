package storeapi

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/access"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
)

// verbAccept is the verb of AcceptSource in the audit log, and kindSource the kind of what it is about.
const (
	verbAccept = "accept"
	kindSource = "Source"
)

var sourceStates = map[source.State]configv1.SourceState{
	source.Syncing: configv1.SourceState_SOURCE_STATE_SYNCING, source.Synced: configv1.SourceState_SOURCE_STATE_SYNCED,
	source.Degraded: configv1.SourceState_SOURCE_STATE_DEGRADED, source.Away: configv1.SourceState_SOURCE_STATE_AWAY,
	source.Saved: configv1.SourceState_SOURCE_STATE_SAVED, source.Held: configv1.SourceState_SOURCE_STATE_HELD,
}

// ListSources implements ConfigStoreService. Callers who may not list everything learn no paths and addresses.
func (s *Server) ListSources(ctx context.Context, _ *configv1.ListSourcesRequest) (*configv1.ListSourcesResponse, error) {
	readable, err := s.readable(ctx, access.List, "", "")
	if err != nil {
		return nil, err
	}
	out := &configv1.ListSourcesResponse{}
	for _, src := range s.allSources() {
		out.Sources = append(out.Sources, s.sourceStatus(src, src.Status(), readable(object.Key{})))
	}
	return out, nil
}

// allSources are the sources in order of precedence, and those that some of them consist of.
func (s *Server) allSources() []source.Source {
	if s.parts == nil {
		return s.sources
	}
	return slices.Concat(s.sources, s.parts())
}

// sourceStatus tells of a source; everything is true for a caller who may list everything.
func (s *Server) sourceStatus(src source.Source, st source.Status, everything bool) *configv1.SourceStatus {
	row := &configv1.SourceStatus{Name: src.Name(), Synced: st.Synced, Objects: uint32(st.Objects), Refused: uint32(len(st.Problems)),
		Unread: uint32(st.UnreadTotal), State: sourceStates[st.State()]}
	row.Degraded, row.Alarm = errorText(st.Degraded, "cannot be read", everything), errorText(st.Alarm, "takes no writes", everything)
	if !st.LastGood.IsZero() {
		row.LastGood = timestamppb.New(st.LastGood)
	}
	if since := st.StaleSince(); !since.IsZero() {
		row.StaleSince = timestamppb.New(since)
	}
	row.StatusUnwritten = errorText(s.statuses.Unwritten(src.Name()), "cannot be written", everything)
	for _, f := range st.Staying {
		row.Staying += uint32(len(f.Objects))
	}
	for _, w := range st.Withheld {
		row.Withheld = append(row.Withheld, &configv1.Withheld{What: w.What, Objects: uint32(w.Objects), InForce: uint32(w.InForce),
			Since: timestamppb.New(w.Since), Until: timestamppb.New(w.Until)})
	}
	row.Problem, row.Remedy = s.trouble(src, st, row)
	return row
}

// trouble says what is the matter with a source first of all, and what to do about it.
func (s *Server) trouble(src source.Source, st source.Status, row *configv1.SourceStatus) (problem, remedy string) {
	saved := func(then string) string {
		return fmt.Sprintf("not read since the start: what was saved at %s is served%s", st.LastGood.UTC().Format(time.RFC3339), then)
	}
	switch state := st.State(); {
	case state == source.Saved && row.Degraded == "":
		return saved(""), ""
	case state == source.Saved:
		return saved("; " + row.Degraded), s.unreadable(src)
	case state == source.Held:
		var parts []string
		until := time.Time{}
		for _, w := range st.Withheld {
			parts = append(parts, w.String())
			if w.Until.After(until) {
				until = w.Until
			}
		}
		return "the last list lacks " + strings.Join(parts, ", ") + ": they stay until a second one lacks them too, not before " +
				until.UTC().Format(time.RFC3339),
			"bring back what is missing; if it was deleted on purpose, `fairlead sources accept " + src.Name() + "`"
	case row.Degraded != "":
		return row.Degraded, s.unreadable(src)
	case row.Alarm != "":
		return row.Alarm, "make room on the disk of --store-dir; it goes on by itself"
	case row.Staying > 0:
		return fmt.Sprintf("%d objects stay whose file is gone, empty or cut off", row.Staying),
			"bring the file back; `fairlead config status` names it"
	case row.Refused > 0:
		return fmt.Sprintf("%d problems of objects, whose last good versions stay", row.Refused), "`fairlead config status` names them"
	case row.StatusUnwritten != "":
		return row.StatusUnwritten, "let config-watcher's service account write the status of objects"
	}
	return "", ""
}

// AcceptSource implements ConfigStoreService. The call is in the audit log before it takes effect.
func (s *Server) AcceptSource(ctx context.Context, req *configv1.AcceptSourceRequest) (_ *configv1.AcceptSourceResponse, err error) {
	about := object.Key{Kind: kindSource, Name: cmp.Or(req.GetName(), "?")}
	defer func() { s.refused(ctx, verbAccept, []object.Key{about}, err) }()
	identity, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.access.IsAdmin(identity); err != nil {
		return nil, deniedStatus(err)
	}
	all := s.allSources()
	i := slices.IndexFunc(all, func(src source.Source) bool { return src.Name() == req.GetName() })
	if i < 0 {
		names := make([]string, len(all))
		for i, src := range all {
			names[i] = src.Name()
		}
		return nil, status.Errorf(codes.NotFound, "there is no source %s; those are %s", object.Quote(req.GetName()), strings.Join(names, ", "))
	}
	holder, ok := all[i].(source.Withholder)
	if !ok || len(all[i].Status().Withheld) == 0 {
		return &configv1.AcceptSourceResponse{}, nil
	}
	if err := s.audit.Do(ctx, verbAccept, about); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &configv1.AcceptSourceResponse{Removed: uint32(holder.Accept())}, nil
}
