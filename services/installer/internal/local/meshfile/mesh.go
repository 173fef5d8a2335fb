// Package meshfile loads the mesh files of `fairlead up`, which hold Kubernetes' and Istio's own kinds as one would
// apply them to a cluster. Load decodes the kinds that decide what the machine runs (Deployments, Services, Sidecars,
// Gateways, ProxyConfigs, Namespaces, MeshConfig) into a Mesh, for package plan; config-watcher reads and validates all
// objects of the same files by itself.
package meshfile

import (
	"errors"
	"fmt"
	"strconv"

	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"
	networkingv1beta1 "istio.io/client-go/pkg/apis/networking/v1beta1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/proxyconfig"
	"fairlead.dev/services/installer/internal/objectfile"
)

// Mesh holds the objects of the mesh files that decide what runs, in the order of the files.
type Mesh struct {
	// Files are the files that were read.
	Files []string
	// Blank are those of Files that hold no object.
	Blank []string
	// Objects are all objects, of any kind.
	Objects []*objectfile.Object
	// Deployments are run.
	Deployments []Deployment
	// Services, Sidecars and Gateways decide on which ports a Pod listens.
	Services []*corev1.Service
	Sidecars []*networkingv1.Sidecar
	Gateways []*networkingv1.Gateway
	// ProxyConfigs decide how proxies are started.
	ProxyConfigs []proxyconfig.Resource
	// Namespaces are the labels of the Namespaces in the files.
	Namespaces map[string]map[string]string
	// Config is MeshConfig.
	Config Config
}

// Deployment is a Deployment with its object in the file, for errors.
type Deployment struct {
	*appsv1.Deployment
	Source *objectfile.Object
}

// unsupported are the kinds that run Pods in a cluster and not here.
var unsupported = map[string]bool{"StatefulSet": true, "DaemonSet": true, "ReplicaSet": true, "Job": true, "CronJob": true}

// Load reads the files that paths name (objectfile.List). It returns all errors at once, joined.
func Load(paths []string) (*Mesh, error) {
	files, err := objectfile.List(paths)
	if err != nil {
		return nil, err
	}
	m := &Mesh{Files: files, Namespaces: map[string]map[string]string{}}
	var errs []error
	for _, f := range files {
		content, err := objectfile.ReadFile(f)
		if err != nil {
			return nil, err
		}
		if objectfile.Blank(content) {
			m.Blank = append(m.Blank, f)
		}
		objects, err := objectfile.Parse(f, content)
		if err != nil {
			errs = append(errs, err)
		}
		m.Objects = append(m.Objects, objects...)
	}
	if err := m.index(); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return m, nil
}

// index decodes the objects of the kinds above.
func (m *Mesh) index() error {
	var errs []error
	seen := map[string]*objectfile.Object{}
	for _, o := range m.Objects {
		if prev, ok := seen[o.APIVersion+o.String()]; ok {
			errs = append(errs, o.Refuse("", fmt.Sprintf("is there twice; the other is at %s:%d", prev.File, prev.Line), "remove or rename one"))
			continue
		}
		seen[o.APIVersion+o.String()] = o
		if err := m.add(o); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (m *Mesh) add(o *objectfile.Object) error {
	switch group := o.GroupVersionKind().Group; {
	case group == "apps" && o.Kind == "Deployment" && o.APIVersion != "apps/v1":
		return o.Refuse("apiVersion", strconv.Quote(o.APIVersion)+" is not served for Deployment", "use apps/v1")
	case group == "apps" && o.Kind == "Deployment":
		d := &appsv1.Deployment{}
		if err := o.Decode(d); err != nil {
			return err
		}
		d.Namespace = o.Namespace
		m.Deployments = append(m.Deployments, Deployment{Deployment: d, Source: o})
	case unsupported[o.Kind] && (group == "apps" || group == "batch"):
		return o.Refuse("kind", "is not run on one machine", "write it as a Deployment (apps/v1)")
	case group == "" && o.Kind == "Namespace":
		m.Namespaces[o.Name] = o.Labels
	case group == "" && o.Kind == "ConfigMap" && o.Namespace == "istio-system" && o.Name == "istio":
		return m.readConfig(o)
	case group == "" && o.Kind == "Service":
		s := &corev1.Service{}
		if err := o.Decode(s); err != nil {
			return err
		}
		s.Namespace = o.Namespace
		m.Services = append(m.Services, s)
	case group == "networking.istio.io" && o.Kind == "Sidecar":
		s := &networkingv1.Sidecar{}
		if err := decodeIstio(o, s); err != nil {
			return err
		}
		s.Namespace = o.Namespace
		m.Sidecars = append(m.Sidecars, s)
	case group == "networking.istio.io" && o.Kind == "Gateway":
		g := &networkingv1.Gateway{}
		if err := decodeIstio(o, g); err != nil {
			return err
		}
		g.Namespace = o.Namespace
		m.Gateways = append(m.Gateways, g)
	case group == "networking.istio.io" && o.Kind == "ProxyConfig":
		p := &networkingv1beta1.ProxyConfig{}
		if err := decodeIstio(o, p); err != nil {
			return err
		}
		m.ProxyConfigs = append(m.ProxyConfigs, proxyconfig.Resource{Namespace: o.Namespace, Name: o.Name, Created: o.CreationTimestamp.Time,
			Spec: &p.Spec})
	}
	return nil
}

// decodeIstio decodes o into out. Istio's types ignore unknown fields; config-watcher refuses these in the same files.
func decodeIstio(o *objectfile.Object, out any) error {
	if err := yaml.Unmarshal(o.Raw, out); err != nil {
		return o.Refuse("spec", objectfile.CleanYAML(err), "correct the field, or remove it")
	}
	return nil
}
