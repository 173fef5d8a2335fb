// Package precheck says what would hinder an installation in a cluster: its version, missing rights, definitions,
// webhooks and control planes that conflict, and what changed since a former version. It changes nothing. The analysis
// of the mesh's own objects is `config-watcher analyze`, which the command runs beside it.
package precheck

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/manifest"
	"fairlead.dev/services/installer/internal/kube"
)

// Levels of findings, the mildest first.
const (
	Info    = "Info"
	Warning = "Warning"
	Error   = "Error"
)

// Levels lists them.
var Levels = []string{Info, Warning, Error}

// Finding is one thing to know before an installation. Those of `config-watcher analyze` have the same fields.
type Finding struct {
	// Mesh is true for findings of the analysis, about the mesh's own objects.
	Mesh bool `json:"-"`
	// Code is Istio's code, of the analysis alone.
	Code string `json:"code,omitempty"`
	// Name is what was found, such as RightMissing.
	Name  string `json:"name"`
	Level string `json:"level"`
	// Origin is the object: "CustomResourceDefinition gateways.networking.istio.io".
	Origin string `json:"origin,omitempty"`
	// Field of the object, of the analysis alone.
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
}

// Config of Run.
type Config struct {
	API     kube.API
	Dynamic dynamic.Interface
	// Objects are what the installation would write.
	Objects []*manifest.Object
	// Namespace and Revision of the control plane; an empty revision is "default".
	Namespace, Revision string
	// RootConfigMap is the ConfigMap that the ca keeps its roots in; empty without a ca.
	RootConfigMap string
	// Changes are defaults that changed since a former version, by the path of their value.
	Changes []Change
	// Since is that version.
	Since string
}

// RightMissing is the Name of findings about rights that the user lacks.
const RightMissing = "RightMissing"

// checker collects findings.
type checker struct {
	Config
	resources map[kind]resource
	found     []Finding
}

func (c *checker) say(level, name, origin, remedy, format string, a ...any) {
	c.found = append(c.found, Finding{Name: name, Level: level, Origin: origin, Message: fmt.Sprintf(format, a...), Remedy: remedy})
}

// kind is a group and kind.
type kind struct{ group, kind string }

// resource is what an API server calls a kind.
type resource struct {
	name, version string
	namespaced    bool
}

// Run looks for everything. What may not be read is a finding; an API server that does not answer is an error.
func Run(ctx context.Context, cfg Config) ([]Finding, error) {
	c := &checker{Config: cfg, resources: map[kind]resource{}}
	if c.Revision == "" {
		c.Revision = "default"
	}
	if err := c.server(); err != nil {
		return nil, err
	}
	for _, check := range []func(context.Context) error{c.rights, c.definitions, c.webhooks, c.controlPlanes} {
		if err := check(ctx); err != nil {
			return nil, err
		}
	}
	c.changes()
	Sort(c.found)
	return c.found, nil
}

// Sort puts the worst first.
func Sort(found []Finding) {
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(-cmp.Compare(slices.Index(Levels, a.Level), slices.Index(Levels, b.Level)), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.Origin, b.Origin), cmp.Compare(a.Message, b.Message))
	})
}

// server reads the version of the API server, and the resources that it serves.
func (c *checker) server() error {
	info, err := c.API.Discovery().ServerVersion()
	if err != nil {
		return err
	}
	if v, err := version.ParseGeneric(info.GitVersion); err != nil {
		c.say(Warning, "KubernetesVersion", "", "check that it is "+cluster.Oldest+" or newer",
			"the API server says its version is %q, which is none", info.GitVersion)
	} else if v.LessThan(version.MustParseGeneric(cluster.Oldest)) {
		c.say(Error, "KubernetesVersion", "", "upgrade the cluster", "Kubernetes is %s; %s is the oldest that an installation runs on",
			info.GitVersion, cluster.Oldest)
	}
	lists, err := c.API.Discovery().ServerPreferredResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return err
	}
	if err != nil {
		c.say(Warning, "APIServiceDown", "", "see `kubectl get apiservices`: deleting namespaces hangs until they answer",
			"groups of the API server do not answer: %v", err)
	}
	for _, list := range lists {
		group, v, ok := strings.Cut(list.GroupVersion, "/")
		if !ok {
			group, v = "", group
		}
		for _, r := range list.APIResources {
			if !strings.Contains(r.Name, "/") {
				c.resources[kind{group, r.Kind}] = resource{r.Name, v, r.Namespaced}
			}
		}
	}
	return nil
}

// unread says that something may not be read.
func (c *checker) unread(what string, err error) {
	c.say(Warning, "NotRead", "", "ask for the right to list them, and run it again",
		"%s cannot be read, so that conflicts with them are not found: %v", what, err)
}

// all is the option of lists: clusters have a handful of what is listed here.
var all = metav1.ListOptions{}
