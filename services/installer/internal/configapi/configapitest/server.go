// Package configapitest is a fake of config-watcher's API for tests of the CLI and the local runtime. Start serves it
// over real TLS and authenticates real tokens; objects are kept in memory without validation.
package configapitest

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/rpc/rpctest"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/objectfile"
)

// Config says whose tokens the server accepts.
type Config struct {
	// JWKSFile and Issuer verify the callers' tokens.
	JWKSFile, Issuer string
}

// Server keeps the objects that are applied, and answers for the rest what a test sets. Apply refuses an object whose
// text contains "broken" and warns about one that contains "ineffective". Status has the keys of one that contains
// "keyless" missing.
type Server struct {
	configv1.UnimplementedConfigStoreServiceServer
	configv1.UnimplementedFleetServiceServer
	configv1.UnimplementedAccessServiceServer

	// Address and RootFile are what a client needs.
	Address, RootFile string

	mu        sync.Mutex
	warnings  []*configv1.Warning
	broken    []*configv1.Warning
	objects   map[string]*configv1.Object
	files     map[string]*configv1.Object
	statuses  map[string]*configv1.ObjectStatus
	findings  []*configv1.Finding
	revision  uint64
	proxies   []*configv1.ProxyStatus
	reporters uint32
	wait      *configv1.WaitAckedResponse
	audit     *configv1.ListAuditResponse
	sources   []*configv1.SourceStatus
	preview   *configv1.PreviewRegistryResponse
	previewed func(context.Context, *configv1.PreviewRegistryRequest) error
}

// Start serves until the test ends. Only service account fairlead-admin may call.
func Start(t testing.TB, cfg Config) *Server {
	t.Helper()
	ca := testkit.PKI(t)
	s := &Server{objects: map[string]*configv1.Object{}, reporters: 1}
	s.RootFile = ca.WriteRoot(t.TempDir())
	tokens, err := auth.NewJWT(auth.JWTConfig{JWKSFile: cfg.JWKSFile, Issuer: cfg.Issuer, Audiences: []string{contract.AdminAudience},
		TrustDomain: ca.TrustDomain})
	if err != nil {
		t.Fatal(err)
	}
	admin := auth.IDs(ca.ID(contract.SystemNamespace, contract.AdminAccount).String())
	lis := testkit.LoopbackListener(t)
	s.Address = lis.Addr().String()
	rpctest.Serve(t, lis, rpc.ServerConfig{
		Service: "test", TLS: tlsconf.Server(ca.NewSVID(contract.SystemNamespace, contract.ConfigWatcherAccount), tls.VerifyClientCertIfGiven),
		Authenticator: tokens,
		Policy: auth.Policy{"/fairlead.config.v1.ConfigStoreService/*": admin, "/fairlead.config.v1.FleetService/*": admin,
			"/fairlead.config.v1.AccessService/*": admin},
	}, func(g *grpc.Server) {
		configv1.RegisterConfigStoreServiceServer(g, s)
		configv1.RegisterFleetServiceServer(g, s)
		configv1.RegisterAccessServiceServer(g, s)
	})
	return s
}

// SetWarnings sets the answer of ListWarnings, and the warnings that every write causes.
func (s *Server) SetWarnings(warnings, broken []*configv1.Warning) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.warnings, s.broken = warnings, broken
}

// ListWarnings implements ConfigStoreService. If the request names hosts or objects, it returns the warnings about
// those; a warning's source stands for its host.
func (s *Server) ListWarnings(_ context.Context, r *configv1.ListWarningsRequest) (*configv1.ListWarningsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	res := &configv1.ListWarningsResponse{}
	for _, w := range s.warnings {
		named := slices.ContainsFunc(r.GetObjects(), func(k *configv1.ObjectKey) bool { return proto.Equal(k, w.GetObject()) })
		if len(r.GetHosts())+len(r.GetObjects()) == 0 || named || slices.Contains(r.GetHosts(), w.GetSource()) {
			res.Warnings = append(res.Warnings, w)
		}
	}
	return res, nil
}

// WhoAmI implements AccessService: every caller is an administrator.
func (s *Server) WhoAmI(ctx context.Context, _ *configv1.WhoAmIRequest) (*configv1.WhoAmIResponse, error) {
	p, _ := auth.PeerFrom(ctx)
	return &configv1.WhoAmIResponse{Identity: p.ID.String(), Method: p.Method,
		Grants: []*configv1.Grant{{Role: "admin", Verbs: []string{"get"}, Namespaces: []string{"*"}}}}, nil
}

// CanI implements AccessService: everybody may read and nothing else.
func (s *Server) CanI(_ context.Context, r *configv1.CanIRequest) (*configv1.CanIResponse, error) {
	if r.GetVerb() == "get" {
		return &configv1.CanIResponse{Allowed: true}, nil
	}
	return &configv1.CanIResponse{Reason: "may not " + r.GetVerb() + " " + r.GetKind() + " in " + r.GetNamespace()}, nil
}

// SetAudit sets what ListAudit answers.
func (s *Server) SetAudit(audit *configv1.ListAuditResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.audit = audit
}

// ListAudit implements AccessService.
func (s *Server) ListAudit(context.Context, *configv1.ListAuditRequest) (*configv1.ListAuditResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.audit, nil
}

// SetFiles sets the objects of files, which are in force unless the store has the same key, and the findings of Status.
func (s *Server) SetFiles(objects []*configv1.Object, findings []*configv1.Finding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files, s.findings = map[string]*configv1.Object{}, findings
	for _, o := range objects {
		s.files[id(o.GetKey())] = o
	}
}

// SetStatuses sets the conditions, parents, listeners and addresses that Status tells of objects.
func (s *Server) SetStatuses(list ...*configv1.ObjectStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statuses = map[string]*configv1.ObjectStatus{}
	for _, o := range list {
		s.statuses[kinds.Text(o.GetKey())] = o
	}
}

// inForce lists the objects in force; the caller holds s.mu.
func (s *Server) inForce() map[string]*configv1.Object {
	all := map[string]*configv1.Object{}
	maps.Copy(all, s.files)
	for k, o := range s.objects {
		stored := proto.CloneOf(o)
		stored.Source = "memory"
		if f := s.files[k]; f != nil {
			stored.Overrides = []*configv1.Place{{Source: f.GetSource(), Location: f.GetLocation()}}
		}
		all[k] = stored
	}
	return all
}

// Status implements ConfigStoreService.
func (s *Server) Status(_ context.Context, r *configv1.StatusRequest) (*configv1.StatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	res := &configv1.StatusResponse{Sources: []*configv1.SourceStatus{
		{Name: "memory", Synced: true, Objects: uint32(len(s.objects))}, {Name: "file", Synced: true, Objects: uint32(len(s.files))},
	}}
	for _, o := range s.inForce() {
		if (r.GetName() == "" || o.GetKey().GetName() == r.GetName()) && (r.GetKind() == "" || kinds.NameOf(o.GetKey()) == r.GetKind()) &&
			(r.GetNamespace() == "" || o.GetKey().GetNamespace() == r.GetNamespace()) {
			if set := s.statuses[kinds.Text(o.GetKey())]; set != nil {
				res.Objects = append(res.Objects, &configv1.ObjectStatus{Key: o.GetKey(), Source: o.GetSource(), InForce: true,
					ObservedGeneration: o.GetGeneration(), Conditions: set.GetConditions(), Parents: set.GetParents(),
					Listeners: set.GetListeners(), Addresses: set.GetAddresses()})
				continue
			}
			res.Objects = append(res.Objects,
				&configv1.ObjectStatus{Key: o.GetKey(), Source: o.GetSource(), InForce: true, ObservedGeneration: o.GetGeneration(),
					Conditions: []*configv1.Condition{
						{Type: "Accepted", Status: "True", Reason: "Accepted", Message: "is valid"},
						{Type: "Programmed", Status: "False", Reason: "Rejected", Message: "1 of 2 proxies acknowledged"},
					}})
			if last := res.Objects[len(res.Objects)-1]; strings.Contains(string(o.GetManifest()), "keyless") {
				last.Conditions = append(last.Conditions, &configv1.Condition{Type: "ResolvedRefs", Status: "False", Message: "no answer"})
			}
		}
	}
	for _, f := range s.findings {
		if r.GetName() == "" || strings.HasSuffix(f.GetObject(), "/"+r.GetName()) {
			res.Findings = append(res.Findings, f)
		}
	}
	return res, nil
}

// SetFleet sets the answers of ListProxies and WaitAcked; a nil wait means that all proxies have acknowledged.
func (s *Server) SetFleet(proxies []*configv1.ProxyStatus, wait *configv1.WaitAckedResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proxies, s.wait = proxies, wait
}

// SetReporters sets how many xds-servers report, one if it was never called.
func (s *Server) SetReporters(n uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reporters = n
}

// Object returns a stored object as a JSON tree; nil if there is none.
func (s *Server) Object(kind, namespace, name string) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[kind+"/"+namespace+"/"+name]
	if o == nil {
		return nil
	}
	var tree map[string]any
	_ = json.Unmarshal(o.GetManifest(), &tree) // was marshalled here
	return tree
}

func id(k *configv1.ObjectKey) string {
	return kinds.NameOf(k) + "/" + k.GetNamespace() + "/" + k.GetName()
}

// Apply implements ConfigStoreService.
func (s *Server) Apply(_ context.Context, r *configv1.ApplyRequest) (*configv1.ApplyResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	res := &configv1.ApplyResponse{Broken: s.broken}
	writes := map[string]*configv1.Object{}
	for _, d := range r.GetDocuments() {
		objects, err := objectfile.Parse(d.GetName(), d.GetContent())
		if err != nil {
			return nil, refusal(err.Error())
		}
		for _, o := range objects {
			if strings.Contains(string(o.Raw), "broken") {
				return nil, refusal(o.Refuse("spec", "is broken", "mend it").Error())
			}
			key := &configv1.ObjectKey{ApiVersion: o.APIVersion, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name}
			text, err := yaml.YAMLToJSON(o.Raw)
			if err != nil {
				return nil, refusal(err.Error())
			}
			action := configv1.Action_ACTION_CREATED
			if s.objects[id(key)] != nil {
				action = configv1.Action_ACTION_CONFIGURED
			}
			writes[id(key)] = &configv1.Object{Key: key, Source: "memory", Generation: 1, ResourceVersion: "1", Manifest: text}
			result := &configv1.ApplyResult{Key: key, Action: action}
			if f := s.files[id(key)]; f != nil {
				result.Overrides = []*configv1.Place{{Source: f.GetSource(), Location: f.GetLocation()}}
			}
			if strings.Contains(string(o.Raw), "ineffective") {
				result.Warnings = []string{o.String() + ": spec: has no effect"}
			}
			res.Results = append(res.Results, result)
		}
	}
	if !r.GetDryRun() {
		s.revision++
		res.Revision = s.revision
		maps.Copy(s.objects, writes)
	}
	return res, nil
}

func refusal(text string) error {
	st, err := status.New(codes.InvalidArgument, text).WithDetails(&errdetails.BadRequest{
		FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "documents", Description: text}},
	})
	if err != nil {
		return err
	}
	return st.Err()
}

// Get implements ConfigStoreService.
func (s *Server) Get(_ context.Context, r *configv1.GetRequest) (*configv1.GetResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[id(r.GetKey())]
	if r.GetInForce() {
		o = s.inForce()[id(r.GetKey())]
	}
	if o == nil {
		return nil, status.Error(codes.NotFound, fmt.Sprintf("%s is not there", id(r.GetKey())))
	}
	return &configv1.GetResponse{Object: o}, nil
}

// List implements ConfigStoreService.
func (s *Server) List(_ context.Context, r *configv1.ListRequest) (*configv1.ListResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	res := &configv1.ListResponse{}
	objects := s.objects
	if r.GetInForce() {
		objects = s.inForce()
	}
	known := r.GetNamespace() == ""
	for _, o := range objects {
		k := o.GetKey()
		known = known || k.GetNamespace() == r.GetNamespace()
		if (r.GetKind() == "" || kinds.NameOf(k) == r.GetKind()) && (r.GetNamespace() == "" || k.GetNamespace() == r.GetNamespace()) {
			res.Objects = append(res.Objects, o)
		}
	}
	if !known && r.GetInForce() {
		return nil, status.Errorf(codes.NotFound, "namespace %q: no object is in it", r.GetNamespace())
	}
	slices.SortFunc(res.Objects, func(a, b *configv1.Object) int { return strings.Compare(id(a.GetKey()), id(b.GetKey())) })
	return res, nil
}

// Delete implements ConfigStoreService.
func (s *Server) Delete(_ context.Context, r *configv1.DeleteRequest) (*configv1.DeleteResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects[id(r.GetKey())] == nil {
		return nil, status.Error(codes.NotFound, fmt.Sprintf("%s is not there", id(r.GetKey())))
	}
	delete(s.objects, id(r.GetKey()))
	s.revision++
	res := &configv1.DeleteResponse{Revision: s.revision, Broken: s.broken}
	if f := s.files[id(r.GetKey())]; f != nil {
		res.Remains = &configv1.Place{Source: f.GetSource(), Location: f.GetLocation()}
	}
	return res, nil
}

// UpdateStatus implements ConfigStoreService.
func (s *Server) UpdateStatus(_ context.Context, r *configv1.UpdateStatusRequest) (*configv1.UpdateStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[id(r.GetKey())]
	if o == nil {
		return nil, status.Error(codes.NotFound, fmt.Sprintf("%s is not there", id(r.GetKey())))
	}
	var tree map[string]json.RawMessage
	if err := json.Unmarshal(o.GetManifest(), &tree); err != nil {
		return nil, err
	}
	tree["status"] = r.GetStatus()
	text, err := json.Marshal(tree)
	if err != nil {
		return nil, err
	}
	next := &configv1.Object{Key: o.GetKey(), Generation: 1, ResourceVersion: "2", Manifest: text}
	s.objects[id(r.GetKey())] = next
	return &configv1.UpdateStatusResponse{Object: next}, nil
}

// ListProxies implements FleetService.
func (s *Server) ListProxies(_ context.Context, r *configv1.ListProxiesRequest) (*configv1.ListProxiesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	proxies := slices.DeleteFunc(slices.Clone(s.proxies), func(p *configv1.ProxyStatus) bool {
		return r.GetNamespace() != "" && p.GetNamespace() != r.GetNamespace()
	})
	return &configv1.ListProxiesResponse{Proxies: proxies, Revision: &configv1.Revision{Sequence: s.revision}, Reporters: s.reporters}, nil
}

// WaitAcked implements FleetService.
func (s *Server) WaitAcked(_ context.Context, r *configv1.WaitAckedRequest) (*configv1.WaitAckedResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wait != nil {
		return s.wait, nil
	}
	sequence := cmp.Or(r.GetSequence(), s.revision)
	return &configv1.WaitAckedResponse{Revision: &configv1.Revision{Sequence: sequence}, Acked: uint32(len(s.proxies))}, nil
}
