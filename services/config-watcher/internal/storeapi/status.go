package storeapi

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/access"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Status implements ConfigStoreService. It shows findings about, and conditions of, objects that the caller may list,
// and those about no object, such as an unreadable path, only to callers who may list everything.
func (s *Server) Status(ctx context.Context, req *configv1.StatusRequest) (*configv1.StatusResponse, error) {
	s.loaded(ctx)
	if err := knownKind(req.Kind); err != nil {
		return nil, statusOf(err)
	}
	readable, err := s.readable(ctx, access.List, req.Kind, req.Namespace)
	if err != nil {
		return nil, err
	}
	all := s.elsewhere.All()
	if err := s.knownNamespace(ctx, req.Namespace, all); err != nil {
		return nil, err
	}
	everything := readable(object.Key{})
	out := &configv1.StatusResponse{}
	add := func(f *configv1.Finding) {
		if k, ok := object.ParseKey(f.Object); !ok && everything && req.Kind+req.Namespace+req.Name == "" || ok && readable(k) && wanted(req, k) {
			out.Findings = append(out.Findings, f)
		}
	}
	for _, src := range s.allSources() {
		st := src.Status()
		row := s.sourceStatus(src, st, everything)
		for _, p := range st.Problems {
			add(problem(configv1.FindingType_FINDING_TYPE_REFUSED, src.Name(), p))
		}
		for _, p := range st.Duplicates {
			add(problem(configv1.FindingType_FINDING_TYPE_OVERRIDDEN, src.Name(), p))
		}
		for _, p := range st.Unread {
			add(problem(configv1.FindingType_FINDING_TYPE_UNREAD, src.Name(), p))
		}
		for _, f := range st.Staying {
			for _, o := range f.Objects {
				add(&configv1.Finding{
					Type: configv1.FindingType_FINDING_TYPE_STAYS, Object: o.Key.String(), Source: src.Name(), Location: o.Location,
					Message: f.File + " " + f.Why + ": the object stays until " + f.Until.UTC().Format(time.RFC3339) + "; bring the file back to keep it",
					Until:   timestamppb.New(f.Until),
				})
			}
		}
		out.Sources = append(out.Sources, row)
	}
	for _, list := range all {
		for _, o := range list[1:] {
			add(&configv1.Finding{
				Type: configv1.FindingType_FINDING_TYPE_OVERRIDDEN, Object: o.Key.String(), Source: o.Source, Location: o.Location,
				Message: "the same object of " + list[0].Place() + " counts; remove one of them",
			})
		}
		for _, w := range list[0].Warnings {
			add(problem(configv1.FindingType_FINDING_TYPE_WARNING, list[0].Source, w))
		}
	}
	for _, f := range s.findings.All() {
		one := problem(configv1.FindingType_FINDING_TYPE_WARNING, f.Source, f.Problem)
		one.Message += " [" + string(f.Code) + "]"
		add(one)
	}
	s.addObjects(out, func(k object.Key) bool { return readable(k) && wanted(req, k) })
	slices.SortStableFunc(out.Findings, func(a, b *configv1.Finding) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Source, b.Source), comparePlaces(a.Location, b.Location),
			cmp.Compare(a.Object, b.Object))
	})
	return out, nil
}

// errorText is an error's full text for callers who may list everything, and briefly for others.
func errorText(err error, briefly string, everything bool) string {
	switch {
	case err == nil:
		return ""
	case everything:
		return err.Error()
	}
	return briefly
}

func problem(kind configv1.FindingType, source string, p object.Problem) *configv1.Finding {
	message := p.Description()
	if p.Field != "" {
		message = p.Field + ": " + message
	}
	return &configv1.Finding{Type: kind, Object: p.Object, Source: source, Location: p.Location, Message: message}
}

// comparePlaces orders "file:line" by file and then by line number.
func comparePlaces(a, b string) int {
	fileA, lineA := cutLine(a)
	fileB, lineB := cutLine(b)
	return cmp.Or(cmp.Compare(fileA, fileB), cmp.Compare(len(lineA), len(lineB)), cmp.Compare(lineA, lineB))
}

func cutLine(location string) (file, line string) {
	if i := strings.LastIndexByte(location, ':'); i >= 0 {
		return location[:i], location[i+1:]
	}
	return location, ""
}

func wanted(req *configv1.StatusRequest, k object.Key) bool {
	if k.Group == "" {
		k.Group, k.Kind, _ = kinds.ByName(k.Kind) // of a text
	}
	return kinds.Matches(req.Kind, k) && (req.Namespace == "" || req.Namespace == k.Namespace) &&
		(req.Name == "" || req.Name == k.Name)
}
