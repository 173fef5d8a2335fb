package audit

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/quota"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/memory"
)

// Bounds of a refusal's line, whose content the caller has chosen and nobody has checked.
const (
	// maxRefusedObjects bounds the objects in the line; it counts the others.
	maxRefusedObjects = 3
	// maxRefusedName bounds each part of an object's key in bytes, as Kubernetes bounds names.
	maxRefusedName = 253
	// maxReason bounds the message in bytes.
	maxReason = 500
	// refusedAtOnce lines are each caller's, and one more every refusedEvery: a caller who is refused again and again
	// pushes no other caller's refusals out of the kept files. A person sees what is wrong from the first; at this rate
	// one caller needs half a day to fill a file of refusals.
	refusedAtOnce = 20
	refusedEvery  = time.Minute
)

// Recorder records the calls of the config API. It is safe for concurrent use.
type Recorder struct {
	log      *Log
	refusals *quota.Callers
}

// NewRecorder returns a recorder that writes to a log.
func NewRecorder(log *Log) *Recorder {
	return &Recorder{log: log, refusals: quota.New(refusedEvery, refusedAtOnce)}
}

// caller returns an entry with the caller and method of the call of ctx; ok is false if ctx belongs to no call.
func caller(ctx context.Context) (e Entry, ok bool) {
	who, ok := auth.PeerFrom(ctx)
	if !ok {
		return e, false
	}
	e.Identity, e.Method = who.ID.String(), who.Method
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		e.Address = p.Addr.String()
	}
	method, _ := grpc.Method(ctx)
	e.Call = method[strings.LastIndexByte(method, '/')+1:]
	return e, true
}

// Accept records the writes of a call before they take effect; the memory source calls it as memory.Config.Audit. It
// does not record config-watcher's own writes, such as the status of Gateways, which belong to no call.
func (r *Recorder) Accept(ctx context.Context, commits []memory.Commit) error {
	e, ok := caller(ctx)
	if !ok {
		return nil
	}
	e.Result = Accepted
	for _, c := range commits {
		o := objectOf(c.Key)
		o.Before, o.After = stateOf(c.Before), stateOf(c.After)
		switch {
		case c.After == nil:
			o.Verb = "delete"
		case c.Before == nil:
			o.Verb = "create"
		default:
			o.Verb = "update"
		}
		e.Objects = append(e.Objects, o)
	}
	return r.log.Append(e)
}

// Do records an act that is no write of objects, such as the acceptance of what a source lacks, before it takes effect.
func (r *Recorder) Do(ctx context.Context, verb string, about object.Key) error {
	e, ok := caller(ctx)
	if !ok {
		return nil
	}
	e.Result, e.Objects = Accepted, verbOf(verb, []object.Key{about})
	return r.log.Append(e)
}

// Ended records that a proxy which was handed a Secret may not have it any more. Nobody calls for that: identity is the
// proxy's.
func (r *Recorder) Ended(identity string, secret object.Key) error {
	return r.ended(identity, "SecretService", secret)
}

// Revoked records that a ReferenceGrant has ended which gave others access to objects. Nobody calls for that: identity
// says who the others are.
func (r *Recorder) Revoked(identity string, objects ...object.Key) error {
	return r.ended(identity, "ReferenceGrant", objects...)
}

func (r *Recorder) ended(identity, by string, objects ...object.Key) error {
	return r.log.Append(Entry{Identity: identity, Call: by, Result: Accepted, Objects: verbOf("end access", objects)})
}

func objectOf(k object.Key) Object {
	return Object{Group: k.Group, Kind: k.Kind, Namespace: k.Namespace, Name: k.Name}
}

func stateOf(it *memory.Item) *State {
	if it == nil {
		return nil
	}
	s := &State{ResourceVersion: it.Version}
	if it.Key.Group != "" || it.Key.Kind != "Secret" {
		s.Hash = hashOf(it.Manifest)
	}
	return s
}

// Refuse records that a call was refused or, if failed is true, accepted but not stored. keys are the objects, as far
// as they are known. Append logs its own errors; nothing must be undone then.
func (r *Recorder) Refuse(ctx context.Context, verb string, keys []object.Key, err error, failed bool) {
	e, ok := caller(ctx)
	if !ok {
		return
	}
	st := status.Convert(err)
	e.Code, e.Reason = st.Code().String(), cut(st.Message(), maxReason, 2*maxReason)
	if st.Code() == codes.Unknown {
		e.Code = codes.Internal.String()
	}
	if failed {
		e.Result = Failed
		e.Objects = verbOf(verb, keys)
		_ = r.log.Append(e)
		return
	}
	now := r.log.cfg.Clock.Now()
	if e.Suppressed, ok = r.refusals.Allow(e.Identity, now); !ok {
		return
	}
	e.Result = Refused
	named := min(len(keys), maxRefusedObjects)
	e.Objects, e.More = verbOf(verb, keys[:named]), len(keys)-named
	for i := range e.Objects {
		o := &e.Objects[i]
		for _, part := range []*string{&o.Group, &o.Kind, &o.Namespace, &o.Name} {
			*part = cut(*part, maxRefusedName, maxRefusedName)
		}
	}
	if r.log.refused.Append(e) != nil {
		r.refusals.Suppress(e.Identity, now, e.Suppressed+1)
	}
}

// cut shortens s to n bytes, and further until its JSON has at most encoded bytes: a character may take six times as
// many there.
func cut(s string, n, encoded int) string {
	for {
		s = object.Cut(s, n)
		if raw, err := json.Marshal(s); err != nil || len(raw) <= encoded+len(`"..."`) {
			return s
		}
		n /= 2
	}
}

// verbOf returns entries for a verb on objects.
func verbOf(verb string, keys []object.Key) []Object {
	var out []Object
	for _, k := range keys {
		o := objectOf(k)
		o.Verb = verb
		out = append(out, o)
	}
	return out
}
