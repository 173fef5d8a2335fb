package storeapi

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/services/config-watcher/internal/access"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/memory"
)

// verbApply is the verb of Apply in the audit log, since its objects may be new or not.
const verbApply = "apply"

// Access decides which identity may do what; access.Access implements it.
type Access interface {
	May(identity, verb string, k object.Key) error
	Anywhere(identity, verb string) error
	// IsAdmin returns nil for administrators.
	IsAdmin(identity string) error
	// Changed closes when the roles change, BansChanged when the bans change.
	Changed() <-chan struct{}
	BansChanged() <-chan struct{}
}

// Audit records refused writes; audit.Recorder implements it. The store calls the recorder for accepted ones.
type Audit interface {
	// Do records an act that is no write of objects, before it takes effect, which it must not after an error.
	Do(ctx context.Context, verb string, about object.Key) error
	Refuse(ctx context.Context, verb string, keys []object.Key, err error, failed bool)
}

// callerOf is the verified identity of the caller.
func callerOf(ctx context.Context) (string, error) {
	p, err := access.Caller(ctx)
	if err != nil {
		return "", err
	}
	return p.ID.String(), nil
}

func deniedStatus(err error) error {
	return status.Error(codes.PermissionDenied, object.Cut(err.Error(), maxMessage))
}

// allow returns an error unless the caller may use the verb on an object. Call it before anything reveals whether the
// object exists.
func (s *Server) allow(ctx context.Context, verb string, k object.Key) error {
	identity, err := callerOf(ctx)
	if err != nil {
		return err
	}
	if err := s.access.May(identity, verb, k); err != nil {
		return deniedStatus(err)
	}
	return nil
}

// readable returns a filter for the objects of a list that the caller may see. It returns an error if the caller names
// a namespace that it may not list, or may list none at all.
func (s *Server) readable(ctx context.Context, verb, kind, namespace string) (func(object.Key) bool, error) {
	identity, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	if namespace != "" {
		err = s.access.May(identity, verb, object.Key{Kind: kind, Namespace: namespace})
	} else {
		err = s.access.Anywhere(identity, verb)
	}
	if err != nil {
		return nil, deniedStatus(err)
	}
	return func(k object.Key) bool { return s.access.May(identity, verb, k) == nil }, nil
}

// mayApply returns an error unless the caller may write all objects. If the caller may only create or only update an
// object, mayApply sets the write's verb accordingly, which the store enforces.
func (s *Server) mayApply(ctx context.Context, writes []memory.Write) error {
	identity, err := callerOf(ctx)
	if err != nil {
		return err
	}
	var refusals []string
	var problems object.Problems
	for i, w := range writes {
		k := w.Object.Key
		create, update := s.access.May(identity, access.Create, k), s.access.May(identity, access.Update, k)
		switch _, err := s.store.Get(k); {
		case create == nil && update == nil:
		case create != nil && update != nil:
			refusals = append(refusals, create.Error())
		case errors.Is(err, memory.ErrNotFound) && create != nil:
			refusals = append(refusals, create.Error())
		case err == nil && update != nil:
			refusals = append(refusals, update.Error())
		case create == nil:
			writes[i].Verb = memory.Create
		default:
			writes[i].Verb = memory.Update
		}
		problems = append(problems, s.banProblems(identity, w.Object)...)
	}
	if len(refusals) > 0 {
		return deniedStatus(errors.New(strings.Join(refusals, "\n")))
	}
	return statusOf(problems.Err())
}

// checkBan refuses bans of identities that the mesh needs, and of the caller.
func (s *Server) checkBan(ctx context.Context, o *object.Object) error {
	identity, err := callerOf(ctx)
	if err != nil {
		return err
	}
	return s.banProblems(identity, o).Err()
}

func (s *Server) banProblems(caller string, o *object.Object) object.Problems {
	b, ok := o.Body.(*object.Ban)
	if !ok {
		return nil
	}
	p := object.Problem{Object: o.Key.String(), Field: "spec.identity", Value: object.Quote(b.Identity)}
	switch what := s.needed(b.Identity); {
	case what != "":
		p.Reason, p.Remedy = "the mesh needs this identity for "+what,
			"a process that misuses it is ended where it runs; its key is replaced by a restart"
	case b.Identity == caller:
		p.Reason, p.Remedy = "this is your own identity, and you could not lift the ban", "let another administrator do it"
	default:
		return nil
	}
	return object.Problems{p}
}

// refused audits a write that failed; err is nil for one that did not.
func (s *Server) refused(ctx context.Context, verb string, keys []object.Key, err error) {
	if err == nil {
		return
	}
	known := keys[:0:0]
	for _, k := range keys {
		if k.Kind != "" {
			known = append(known, k)
		}
	}
	s.audit.Refuse(ctx, verb, known, err, status.Code(err) == codes.Unavailable &&
		strings.Contains(err.Error(), memory.ErrNotWritable.Error()))
}
