// Package kuberequest gets certificates by objects of Kubernetes: it creates one for each request, waits until a
// controller has written its answer into the object's status, and deletes it. Packages kubecsr and certmanager say what
// these objects are.
//
// All requests share one watch. Objects that a killed ca leaves behind are deleted by the next one.
package kuberequest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/ca/internal/signer"
)

// Labels and annotation of every object. managedBy marks those of all replicas, processLabel those of one process;
// identityAnnotation says for whom the certificate is.
const (
	managedBy          = contract.ManagedByLabel + "=" + contract.ManagedByCA
	processLabel       = "ca.fairlead.dev/process"
	identityAnnotation = "ca.fairlead.dev/identity"
)

// waitingPerPlace bounds the requests that wait for a place, as a multiple of Limits.InFlight.
const waitingPerPlace = 10

// Kind is a kind of object by which certificates are requested.
type Kind struct {
	// Name is the kind, such as CertificateSigningRequest; Resource is where the API server has it.
	Name     string
	Resource schema.GroupVersionResource
	// Namespace of the objects; empty for a kind without namespaces.
	Namespace string
	// Approval is the subresource by which an Approved condition is set, if Approve is true.
	Approval string
	Approve  bool
	// ApproveRights says, for whoever may not approve, which rights that needs.
	ApproveRights string
	// Judge reads a status: issued is true if it has the certificate; it returns an error if there will be none.
	Judge func(Status) (issued bool, err *signer.Error)
	// MinSeconds is the shortest lifetime that can be asked for.
	MinSeconds int64
}

// Target is a signer that requests can go to.
type Target struct {
	// Profile is the name by which workloads ask for it, and Namespaces are theirs; "*" is all. The target with the
	// empty Profile gets the requests that ask for none, of every namespace.
	Profile    string
	Namespaces []string
	// Alias is another name by which workloads may ask for it, if it is not empty.
	Alias string
	// Signer names it in errors.
	Signer string
	// Roots verify what it issues.
	Roots Roots
	// Spec returns the spec of the object that asks for a certificate.
	Spec func(Ask) map[string]any
}

// Ask is what an object asks for.
type Ask struct {
	// CSR is the request in PEM.
	CSR []byte
	// RSA is true if the key is one that can encipher others.
	RSA bool
	// Seconds is the lifetime, counted from when the signer signs.
	Seconds int64
}

// Issuer implements signer.Issuer.
type Issuer struct {
	cfg     Config
	deps    signer.Deps
	kind    Kind
	targets []*target

	objects dynamic.ResourceInterface
	watched dynamic.ResourceInterface
	roots   *rootReader
	process string
	hub     *hub
	// places has a token for each object that exists; queued counts the requests that have or want one.
	places chan struct{}
	queued atomic.Int64
	// undeleted is why objects could not be deleted lately; ended is closed when Run ends.
	undeleted atomic.Pointer[signer.Error]
	ended     chan struct{}

	announcing sync.Mutex
	authorities
}

var _ signer.Issuer = (*Issuer)(nil)

// target is a Target with what is known of it.
type target struct {
	Target
	trust
}

// New makes an Issuer without asking the API server. cluster is how to reach it; its own limits of requests do not
// count. At least one of the targets is needed.
func New(cfg Config, d signer.Deps, cluster *rest.Config, kind Kind, targets []Target) (*Issuer, error) {
	if cluster == nil {
		return nil, fmt.Errorf("needs the API server for a %s; start the ca with --kubernetes", kind.Name)
	}
	cfg = cfg.complete()
	limited := rest.CopyConfig(cluster)
	limited.Timeout, limited.RateLimiter = 0, nil // each request has a deadline of its own, and watches have none
	limited.QPS, limited.Burst = float32(cfg.Limits.RequestsPerSecond), cfg.Limits.Burst
	requests, err := dynamic.NewForConfig(limited)
	if err != nil {
		return nil, fmt.Errorf("client of the API server: %w", err)
	}
	// The watch and the roots do not queue behind requests for certificates.
	limited.QPS, limited.Burst = 20, 50
	following, err := dynamic.NewForConfig(limited)
	if err != nil {
		return nil, fmt.Errorf("client of the API server: %w", err)
	}
	i := &Issuer{
		cfg: cfg, deps: d, kind: kind, process: strings.ToLower(rand.Text()),
		objects: resource(requests, kind), watched: resource(following, kind), roots: &rootReader{api: following},
		places: make(chan struct{}, cfg.Limits.InFlight), ended: make(chan struct{}),
	}
	i.hub = newHub(i)
	for _, t := range targets {
		i.targets = append(i.targets, &target{Target: t})
	}
	return i, nil
}

func resource(client dynamic.Interface, k Kind) dynamic.ResourceInterface {
	if k.Namespace == "" {
		return client.Resource(k.Resource)
	}
	return client.Resource(k.Resource).Namespace(k.Namespace)
}

// Capabilities implements signer.Issuer: a controller takes the names from the CSR, and sets lifetime and extensions
// as it likes.
func (i *Issuer) Capabilities() signer.Capabilities { return signer.Capabilities{Remote: true} }

// Run follows objects and roots, and deletes orphans, until ctx ends. It may be called once.
func (i *Issuer) Run(ctx context.Context) error {
	var running sync.WaitGroup
	running.Go(func() { i.hub.run(ctx) })
	running.Go(func() { i.followRoots(ctx) })
	running.Go(func() { i.collectOrphans(ctx) })
	running.Wait()
	close(i.ended)
	i.settle()
	return nil
}

// Problem is why some requests, or all, are not answered now, or roots are older than they should be; nil if nothing is
// wrong.
func (i *Issuer) Problem() error {
	var errs []error
	for _, t := range i.targets {
		if err := t.failing(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", t.Signer, err))
		}
	}
	if err := i.hub.failing(); err != nil {
		errs = append(errs, err)
	}
	if err := i.undeleted.Load(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// target returns the one that a request goes to.
func (i *Issuer) target(r *signer.Request, namespace string) (*target, *signer.Error) {
	var usable []string
	for _, t := range i.targets {
		if t.Profile != "" && !allows(t.Namespaces, namespace) {
			continue
		}
		if t.Profile == r.Profile || t.Alias != "" && t.Alias == r.Profile {
			return t, nil
		}
		if t.Profile != "" {
			usable = append(usable, t.Profile)
		}
	}
	slices.Sort(usable)
	if r.Profile == "" {
		return nil, signer.Errorf(signer.Unsuitable, "the request names no signer, and there is none for such requests; name one of %q "+
			"(ISTIO_META_CERT_SIGNER in proxyMetadata)", usable)
	}
	return nil, signer.Errorf(signer.Unsuitable, "the request names the signer %q, which namespace %s may not use; name one of %q, or have "+
		"the ca's operator add the namespace to this signer's profile", cut(r.Profile, 64), namespace, usable)
}

func allows(namespaces []string, namespace string) bool {
	return slices.Contains(namespaces, namespace) || slices.Contains(namespaces, "*")
}

// object says in errors which object is meant.
func (i *Issuer) object(name string) string {
	if i.kind.Namespace != "" {
		name = i.kind.Namespace + "/" + name
	}
	return i.kind.Name + " " + name
}

// made is an object that was created.
type made struct {
	name string
	uid  types.UID
}
