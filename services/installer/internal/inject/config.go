package inject

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"

	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

const (
	policyEnabled  = "enabled"
	policyDisabled = "disabled"
	// sidecarTemplate is the template of a Pod that names none, unless the configuration says another.
	sidecarTemplate = "sidecar"
)

// Config is what decides and renders: the ConfigMap istio-sidecar-injector and the mesh's settings. It is immutable.
type Config struct {
	policy        string
	never, always []labels.Selector
	templates     map[string]*template.Template
	defaults      []string
	aliases       map[string][]string
	annotations   map[string]string
	values        map[string]any
	known         knownValues
	mesh          *meshconfig.MeshConfig
	revision      string
	// compliance is the template's CompliancePolicy.
	compliance string
}

// fields are the fields of the ConfigMap's config that count. The field template holds a text that only injectors older
// than the list of templates use.
type fields struct {
	Policy               string                 `json:"policy"`
	DefaultTemplates     []string               `json:"defaultTemplates"`
	Templates            map[string]string      `json:"templates"`
	Aliases              map[string][]string    `json:"aliases"`
	NeverInjectSelector  []metav1.LabelSelector `json:"neverInjectSelector"`
	AlwaysInjectSelector []metav1.LabelSelector `json:"alwaysInjectSelector"`
	InjectedAnnotations  map[string]string      `json:"injectedAnnotations"`
}

// knownValues are the values that the engine itself reads; templates read any.
type knownValues struct {
	Global struct {
		Hub          string `json:"hub"`
		Tag          any    `json:"tag"`
		Variant      string `json:"variant"`
		Network      string `json:"network"`
		CAAddress    string `json:"caAddress"`
		MultiCluster struct {
			ClusterName string `json:"clusterName"`
		} `json:"multiCluster"`
		Proxy struct {
			Image                string `json:"image"`
			HoldUntilProxyStarts bool   `json:"holdApplicationUntilProxyStarts"`
		} `json:"proxy"`
		ProxyInit struct {
			Image string `json:"image"`
		} `json:"proxy_init"`
	} `json:"global"`
	SidecarInjectorWebhook struct {
		RewriteAppHTTPProbe bool `json:"rewriteAppHTTPProbe"`
	} `json:"sidecarInjectorWebhook"`
}

// ParseConfig reads the keys config and values of the ConfigMap istio-sidecar-injector[-REV]. mesh, as ParseMesh
// returns it, must not be changed afterwards; revision is the control plane's, "" for the default one. An error names
// the field of the ConfigMap.
func ParseConfig(config, values []byte, mesh *meshconfig.MeshConfig, revision string) (*Config, error) {
	var f fields
	if err := yaml.Unmarshal(config, &f); err != nil {
		return nil, fmt.Errorf("config of the injection configuration: %w; correct it in the ConfigMap istio-sidecar-injector", err)
	}
	if f.Policy != policyEnabled && f.Policy != policyDisabled {
		return nil, fmt.Errorf("policy of the injection configuration is %q; say enabled or disabled", f.Policy)
	}
	return newConfig(f, values, mesh, revision)
}

// ParseForFiles is ParseConfig for `fairlead kube-inject`, whose user asks for injection: the policy is enabled,
// whatever config says. config may be a template alone.
func ParseForFiles(config, values []byte, mesh *meshconfig.MeshConfig, revision string) (*Config, error) {
	var f fields
	if err := yaml.Unmarshal(config, &f); err != nil || len(f.Templates) == 0 {
		f = fields{Templates: map[string]string{sidecarTemplate: string(config)}}
	}
	f.Policy = policyEnabled
	return newConfig(f, values, mesh, revision)
}

func newConfig(f fields, values []byte, mesh *meshconfig.MeshConfig, revision string) (*Config, error) {
	if mesh == nil || mesh.GetDefaultConfig() == nil {
		return nil, errors.New("no mesh configuration with a defaultConfig; read it with ParseMesh")
	}
	c := &Config{
		policy: f.Policy, defaults: f.DefaultTemplates, aliases: f.Aliases, annotations: f.InjectedAnnotations,
		mesh: proto.CloneOf(mesh), revision: revision, templates: map[string]*template.Template{},
	}
	if len(c.defaults) == 0 {
		c.defaults = []string{sidecarTemplate}
	}
	var err error
	if c.never, err = selectors("neverInjectSelector", f.NeverInjectSelector); err != nil {
		return nil, err
	}
	if c.always, err = selectors("alwaysInjectSelector", f.AlwaysInjectSelector); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(f.Templates)) {
		if c.templates[name], err = parseTemplate(f.Templates[name]); err != nil {
			return nil, fmt.Errorf("template %q of the injection configuration: %w; correct it in sidecarInjectorWebhook.templates", name, err)
		}
	}
	if err := c.readValues(values); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Config) readValues(values []byte) error {
	err := yaml.Unmarshal(values, &c.values)
	if err == nil && c.values == nil {
		err = errors.New("they are empty")
	}
	var text []byte
	if err == nil {
		text, err = json.Marshal(c.values)
	}
	if err == nil {
		err = json.Unmarshal(text, &c.known)
	}
	if err != nil {
		return fmt.Errorf("values of the injection configuration: %w; they are an object with global and sidecarInjectorWebhook", err)
	}
	return nil
}

// selectors compiles selectors. An empty one selects nothing here.
func selectors(field string, list []metav1.LabelSelector) ([]labels.Selector, error) {
	var out []labels.Selector
	for i := range list {
		s, err := metav1.LabelSelectorAsSelector(&list[i])
		if err != nil {
			return nil, fmt.Errorf("%s[%d] of the injection configuration: %w; correct the selector", field, i, err)
		}
		if !s.Empty() {
			out = append(out, s)
		}
	}
	return out, nil
}

// templateNames lists the templates, for errors.
func (c *Config) templateNames() string {
	return strings.Join(slices.Sorted(maps.Keys(c.templates)), ", ")
}

// WithCompliance returns the configuration for proxies under a compliance policy: "" or what COMPLIANCE_POLICY of Istio
// takes, such as "fips-140-2".
func (c *Config) WithCompliance(policy string) *Config {
	out := *c
	out.compliance = policy
	return &out
}

// Mesh returns the mesh configuration, which the caller must not change.
func (c *Config) Mesh() *meshconfig.MeshConfig { return c.mesh }
