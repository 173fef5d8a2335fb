package storeapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/access"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/consul"
	"fairlead.dev/services/config-watcher/internal/source/memory"
	"fairlead.dev/services/config-watcher/internal/source/remote"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// revisionWithin is how long a write waits for the revision that contains it. After that it answers with revision 0:
// the object is stored, but a source that has not synced keeps every revision from being made.
const revisionWithin = 10 * time.Second

// Revisions waits until everything written before the call is in a revision; pipeline.Pipeline implements it.
type Revisions interface {
	Wait(ctx context.Context) (uint64, error)
}

// Elsewhere has the objects of all sources; aggregate.Aggregate implements it.
type Elsewhere interface {
	Get(object.Key) *object.Object
	Others(*object.Object) (more, less []*object.Object)
	All() [][]*object.Object
}

// Server implements ConfigStoreService.
type Server struct {
	configv1.UnimplementedConfigStoreServiceServer
	store     *memory.Store
	revisions Revisions
	elsewhere Elsewhere
	access    Access
	audit     Audit
	findings  Findings
	needed    func(identity string) string
	log       *slog.Logger
	stop      <-chan struct{}
	statuses  Statuses
	sources   []source.Source
	remotes   *remote.Clusters
	parts     func() []source.Source
	cluster   string
	previews  *consul.Previews
	domain    string
	// unreadable says what to do about a source that cannot be read.
	unreadable func(source.Source) string
}

// Config of a Server. All fields are required.
type Config struct {
	Store     *memory.Store
	Revisions Revisions
	Elsewhere Elsewhere
	Access    Access
	Audit     Audit
	Findings  Findings
	Statuses  Statuses
	// Needed returns what the mesh needs an identity for, which then cannot be banned; "" if nothing.
	Needed func(identity string) string
	Log    *slog.Logger
	// Stop is closed to end watches, so that the server can drain.
	Stop <-chan struct{}
	// Sources are in order of precedence.
	Sources []source.Source
	// Remotes are the remote clusters; nil if there can be none. Cluster is the id of the own one.
	Remotes *remote.Clusters
	// Parts are the sources that others of Sources consist of: remote clusters, registries, and what the
	// mesh configuration declares. It may be nil.
	Parts   func() []source.Source
	Cluster string
	// Previews of registries; Domain is the DNS suffix of the mesh's services.
	Previews *consul.Previews
	Domain   string
	// Unreadable says what to do about a source that cannot be read.
	Unreadable func(source.Source) string
}

// NewServer serves a store.
func NewServer(cfg Config) *Server {
	return &Server{
		store: cfg.Store, revisions: cfg.Revisions, elsewhere: cfg.Elsewhere, access: cfg.Access, audit: cfg.Audit, findings: cfg.Findings,
		needed: cfg.Needed, log: cfg.Log, stop: cfg.Stop,
		statuses: cfg.Statuses, sources: cfg.Sources, remotes: cfg.Remotes, parts: cfg.Parts, cluster: cfg.Cluster,
		unreadable: cfg.Unreadable, previews: cfg.Previews, domain: cfg.Domain,
	}
}

// revision waits for the revision that contains the last write and returns its number, 0 if none comes in time.
func (s *Server) revision(ctx context.Context) uint64 {
	ctx, cancel := context.WithTimeout(ctx, revisionWithin)
	defer cancel()
	sequence, err := s.revisions.Wait(ctx)
	if err != nil {
		s.log.Warn("stored, but not in a revision yet", "error", err)
		return 0
	}
	return sequence
}

// loadedWithin is how long a call waits for a store that is still reading its directory.
const loadedWithin = 5 * time.Second

// loaded waits for the store, so that callers need not wait for the start of the process. The store itself refuses
// early calls.
func (s *Server) loaded(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, loadedWithin)
	defer cancel()
	select {
	case <-s.store.Loaded():
	case <-s.stop:
	case <-ctx.Done():
	}
}

// key converts an ObjectKey. Without an API version, the kind means what kinds.ByName says.
func key(k *configv1.ObjectKey) (object.Key, error) {
	out := object.Key{Kind: k.GetKind(), Namespace: k.GetNamespace(), Name: k.GetName()}
	if out.Kind == "" || out.Name == "" {
		return out, object.Problems{{Object: out.String(), Field: "key", Reason: "kind and name are required", Remedy: "set both"}}
	}
	if group, _, ok := strings.Cut(k.GetApiVersion(), "/"); ok {
		out.Group = group
	} else if k.GetApiVersion() == "" {
		known := false
		if out.Group, out.Kind, known = kinds.ByName(out.Kind); !known {
			return out, object.Problems{unknownKind(out.Kind)}
		}
	}
	if kinds.ClusterScoped(out.Group, out.Kind) {
		out.Namespace = ""
	} else if out.Namespace == "" {
		out.Namespace = kinds.DefaultNamespace
	}
	return out, nil
}

func keyProto(it *memory.Item) *configv1.ObjectKey {
	return &configv1.ObjectKey{ApiVersion: it.APIVersion, Kind: it.Key.Kind, Namespace: it.Key.Namespace, Name: it.Key.Name}
}

func (s *Server) objectProto(it *memory.Item) *configv1.Object {
	out := bareProto(it)
	out.Manifest = withFindings(shown(it), s.findings.Of(it.Key))
	return out
}

// bareProto is objectProto without the manifest.
func bareProto(it *memory.Item) *configv1.Object {
	return &configv1.Object{Key: keyProto(it), ResourceVersion: it.Version, Generation: it.Generation, Source: memory.Name}
}

// Get implements ConfigStoreService.
func (s *Server) Get(ctx context.Context, req *configv1.GetRequest) (*configv1.GetResponse, error) {
	s.loaded(ctx)
	k, err := key(req.Key)
	if err != nil {
		return nil, statusOf(err)
	}
	if err := s.allow(ctx, access.Get, k); err != nil {
		return nil, err
	}
	if req.InForce {
		o, err := s.getInForce(ctx, k)
		if err != nil {
			return nil, err
		}
		return &configv1.GetResponse{Object: o}, nil
	}
	it, err := s.store.Get(k)
	if err != nil {
		return nil, s.explain(k, err)
	}
	return &configv1.GetResponse{Object: s.objectProto(it)}, nil
}

// explain names the source of an object that the store does not have.
func (s *Server) explain(k object.Key, err error) error {
	if errors.Is(err, memory.ErrNotFound) {
		if o := s.elsewhere.Get(k); o != nil {
			return status.Errorf(codes.NotFound, "%s is not in the store: it comes from source %s (%s); change it there", k, o.Source, o.Location)
		}
	}
	return statusOf(err)
}

// List implements ConfigStoreService.
func (s *Server) List(ctx context.Context, req *configv1.ListRequest) (*configv1.ListResponse, error) {
	s.loaded(ctx)
	if err := knownKind(req.Kind); err != nil {
		return nil, statusOf(err)
	}
	readable, err := s.readable(ctx, access.List, req.Kind, req.Namespace)
	if err != nil {
		return nil, err
	}
	if req.InForce {
		return s.listInForce(ctx, req, readable)
	}
	items, err := s.store.List(req.Kind, req.Namespace)
	if err != nil {
		return nil, statusOf(err)
	}
	out := &configv1.ListResponse{Objects: make([]*configv1.Object, 0, len(items))}
	for _, it := range items {
		if readable(it.Key) {
			out.Objects = append(out.Objects, s.objectProto(it))
		}
	}
	return out, nil
}

// one decodes a manifest of exactly one object.
func one(text []byte) (memory.Write, error) {
	docs, problems := manifest.Parse("", text)
	if len(problems) > 0 {
		return memory.Write{}, problems
	}
	if len(docs) != 1 {
		return memory.Write{}, object.Problems{{Field: "manifest", Reason: fmt.Sprintf("holds %d objects", len(docs)),
			Remedy: "send exactly one; Apply takes several"}}
	}
	withoutMessages(docs[0].Tree)
	o, err := decode(docs[0])
	return memory.Write{Doc: docs[0], Object: o, KeepAbsentStatus: true}, err
}

func decode(doc *manifest.Document) (*object.Object, error) {
	o, err := validate.Document(doc)
	if unread, ok := errors.AsType[*validate.UnreadError](err); ok {
		return nil, object.Problems{unread.Problem}
	}
	return o, err
}

func (s *Server) write(ctx context.Context, text []byte, verb memory.Verb, named string) (_ *configv1.Object, _ uint64, err error) {
	var keys []object.Key
	defer func() { s.refused(ctx, named, keys, err) }()
	w, err := one(text)
	if err != nil {
		return nil, 0, statusOf(err)
	}
	keys = append(keys, w.Object.Key)
	if err := s.allow(ctx, named, w.Object.Key); err != nil {
		return nil, 0, err
	}
	if err := s.checkBan(ctx, w.Object); err != nil {
		return nil, 0, statusOf(err)
	}
	w.Verb = verb
	results, err := s.store.Write(ctx, []memory.Write{w}, false)
	if err != nil {
		return nil, 0, s.explain(w.Object.Key, err)
	}
	return s.objectProto(results[0].Item), s.revision(ctx), nil
}

// Create implements ConfigStoreService.
func (s *Server) Create(ctx context.Context, req *configv1.CreateRequest) (*configv1.CreateResponse, error) {
	s.loaded(ctx)
	o, revision, err := s.write(ctx, req.Manifest, memory.Create, access.Create)
	if err != nil {
		return nil, err
	}
	return &configv1.CreateResponse{Object: o, Revision: revision}, nil
}

// Update implements ConfigStoreService.
func (s *Server) Update(ctx context.Context, req *configv1.UpdateRequest) (*configv1.UpdateResponse, error) {
	s.loaded(ctx)
	o, revision, err := s.write(ctx, req.Manifest, memory.Update, access.Update)
	if err != nil {
		return nil, err
	}
	return &configv1.UpdateResponse{Object: o, Revision: revision}, nil
}

// UpdateStatus implements ConfigStoreService.
func (s *Server) UpdateStatus(ctx context.Context, req *configv1.UpdateStatusRequest) (_ *configv1.UpdateStatusResponse, err error) {
	s.loaded(ctx)
	k, err := key(req.Key)
	defer func() { s.refused(ctx, access.Update, []object.Key{k}, err) }()
	if err != nil {
		return nil, statusOf(err)
	}
	if err := s.allow(ctx, access.Update, k); err != nil {
		return nil, err
	}
	st, err := jsonObject("status", req.Status)
	if err != nil {
		return nil, statusOf(err)
	}
	r, err := s.store.Edit(ctx, k, req.ResourceVersion, func(tree map[string]any) (map[string]any, error) {
		tree["status"] = st
		withoutMessages(tree)
		return tree, nil
	})
	if err != nil {
		return nil, s.explain(k, err)
	}
	return &configv1.UpdateStatusResponse{Object: s.objectProto(r.Item)}, nil
}

// Patch implements ConfigStoreService.
func (s *Server) Patch(ctx context.Context, req *configv1.PatchRequest) (_ *configv1.PatchResponse, err error) {
	s.loaded(ctx)
	k, err := key(req.Key)
	defer func() { s.refused(ctx, access.Patch, []object.Key{k}, err) }()
	if err != nil {
		return nil, statusOf(err)
	}
	if err := s.allow(ctx, access.Patch, k); err != nil {
		return nil, err
	}
	if kinds.IsIdentityBan(k) {
		return nil, statusOf(object.Problems{{Object: k.String(), Reason: "is not patched: whom it bans is checked as a whole",
			Remedy: "apply the whole object"}})
	}
	patch, err := jsonObject("patch", req.Patch)
	if err != nil {
		return nil, statusOf(err)
	}
	r, err := s.store.Edit(ctx, k, req.ResourceVersion, func(tree map[string]any) (map[string]any, error) {
		merged, _ := mergePatch(tree, patch).(map[string]any)
		return merged, nil
	})
	if err != nil {
		return nil, s.explain(k, err)
	}
	return &configv1.PatchResponse{Object: s.objectProto(r.Item), Revision: s.revision(ctx)}, nil
}

// Delete implements ConfigStoreService.
func (s *Server) Delete(ctx context.Context, req *configv1.DeleteRequest) (_ *configv1.DeleteResponse, err error) {
	s.loaded(ctx)
	k, err := key(req.Key)
	defer func() { s.refused(ctx, access.Delete, []object.Key{k}, err) }()
	if err != nil {
		return nil, statusOf(err)
	}
	if err := s.allow(ctx, access.Delete, k); err != nil {
		return nil, err
	}
	mark := s.findings.Mark()
	if err := s.store.Delete(ctx, k, req.ResourceVersion); err != nil {
		return nil, s.explain(k, err)
	}
	out := &configv1.DeleteResponse{Revision: s.revision(ctx), Remains: place(s.elsewhere.Get(k))}
	if out.Revision > 0 {
		out.Broken = s.broken(ctx, mark, []object.Key{k})
	}
	return out, nil
}

// Apply implements ConfigStoreService.
func (s *Server) Apply(ctx context.Context, req *configv1.ApplyRequest) (_ *configv1.ApplyResponse, err error) {
	s.loaded(ctx)
	var keys []object.Key
	defer func() {
		if !req.DryRun {
			s.refused(ctx, verbApply, keys, err)
		}
	}()
	writes, unread, err := s.applied(req)
	if err != nil {
		return nil, statusOf(err)
	}
	for _, w := range writes {
		keys = append(keys, w.Object.Key)
	}
	if err := s.mayApply(ctx, writes); err != nil {
		return nil, err
	}
	mark := s.findings.Mark()
	results, err := s.store.Write(ctx, writes, req.DryRun)
	if err != nil {
		return nil, statusOf(err)
	}
	out := &configv1.ApplyResponse{}
	for _, p := range unread {
		out.Unread = append(out.Unread, problem(configv1.FindingType_FINDING_TYPE_UNREAD, memory.Name, p))
	}
	changed := false
	for i, r := range results {
		res := &configv1.ApplyResult{Key: keyProto(r.Item), Action: configv1.Action_ACTION_UNCHANGED}
		if r.Changed {
			changed, res.Action = true, configv1.Action_ACTION_CONFIGURED
		}
		if r.Created {
			res.Action = configv1.Action_ACTION_CREATED
		}
		if !req.DryRun {
			res.ResourceVersion = r.Item.Version
		}
		more, less := s.elsewhere.Others(r.Item.Object())
		if res.Overrides = places(less); len(more) > 0 {
			res.OverriddenBy = place(more[0])
		}
		for _, w := range writes[i].Object.Warnings {
			res.Warnings = append(res.Warnings, w.Error())
		}
		out.Results = append(out.Results, res)
	}
	if changed && !req.DryRun {
		if out.Revision = s.revision(ctx); out.Revision == 0 {
			return out, nil // a source has not been read: references cannot be resolved yet
		}
	}
	s.addFindings(ctx, out, results, keys, mark, req.DryRun)
	return out, nil
}

// applied decodes all documents and collects their problems. Objects of unread kinds are refused, or returned as
// skipped if the caller asks for that.
func (s *Server) applied(req *configv1.ApplyRequest) (writes []memory.Write, skipped object.Problems, err error) {
	var problems object.Problems
	seen := map[object.Key]string{}
	for _, d := range req.Documents {
		docs, ps := manifest.Parse(d.Name, d.Content)
		problems = append(problems, ps...)
		for _, doc := range docs {
			withoutMessages(doc.Tree)
			o, err := validate.Document(doc)
			var ps object.Problems
			var unread *validate.UnreadError
			switch {
			case errors.As(err, &unread) && req.SkipUnread:
				skipped = append(skipped, unread.Problem)
			case errors.As(err, &unread):
				problems = append(problems, unread.Problem)
			case errors.As(err, &ps):
				problems = append(problems, ps...)
			case err != nil:
				return nil, nil, err
			case seen[o.Key] != "":
				problems = append(problems, object.Problem{Location: doc.Location(), Object: o.Key.String(), Reason: "same object as at " + seen[o.Key],
					Remedy: "remove one of them"})
			default:
				seen[o.Key] = doc.Location()
				if seen[o.Key] == "" {
					seen[o.Key] = fmt.Sprintf("line %d", doc.Line)
				}
				writes = append(writes, memory.Write{Doc: doc, Object: o, Verb: memory.Apply, KeepAbsentStatus: true})
			}
		}
	}
	return writes, skipped, problems.Err()
}
