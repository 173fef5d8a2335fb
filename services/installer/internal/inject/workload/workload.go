// Package workload injects the workloads of a file, as `fairlead kube-inject` does: it finds the Pod in objects of
// every kind that has one, calls inject.Config.Inject, and writes the file again. What has no Pod stays byte for byte.
package workload

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/proxyconfig"
	"fairlead.dev/services/installer/internal/inject"
)

// Options are what a cluster knows besides the injection configuration.
type Options struct {
	// NativeSidecars says that every node runs native sidecars.
	NativeSidecars bool
	ProxyConfigs   []proxyconfig.Resource
	// Namespace returns a namespace, nil if it is not known. Nil knows none.
	Namespace func(name string) *corev1.Namespace
}

// Injector injects files with one configuration.
type Injector struct {
	Config *inject.Config
	Options
	// Warnings gathers what was not injected, and why, and the warnings of injection.
	Warnings []string
}

// Text injects the workloads of a file in YAML or JSON, of any number of documents, and of Lists in it. An error names
// the object; nothing is returned then.
func (i *Injector) Text(text []byte) ([]byte, error) {
	var out bytes.Buffer
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for n := 1; ; n++ {
		raw, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return out.Bytes(), nil
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w; correct the YAML", n, err)
		}
		injected, err := i.document(raw)
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		out.Write(injected)
		out.WriteString("---\n")
	}
}

// document injects one document; one without a Pod is returned as it is.
func (i *Injector) document(raw []byte) ([]byte, error) {
	object, err := i.object(raw)
	if object == nil || err != nil {
		return raw, err
	}
	return yaml.Marshal(object)
}

// object returns the injected object, nil for one of a kind that has no Pod.
func (i *Injector) object(raw []byte) (any, error) {
	var t metav1.TypeMeta
	if err := yaml.Unmarshal(raw, &t); err != nil {
		return nil, fmt.Errorf("%w; correct the YAML", err)
	}
	kind := t.APIVersion + " " + t.Kind
	switch {
	case kind == "v1 List":
		return i.list(raw)
	case kind == "apps.openshift.io/v1 DeploymentConfig":
		return i.deploymentConfig(raw)
	case kinds[kind] == nil:
		return nil, nil //nolint:nilnil // no Pod, no error
	}
	object := kinds[kind]()
	if err := yaml.Unmarshal(raw, object); err != nil {
		return nil, fmt.Errorf("%s: %w; correct the field", t.Kind, err)
	}
	if js, err := yaml.YAMLToJSON(raw); err == nil {
		unknown, _ := kjson.UnmarshalStrict(js, kinds[kind]())
		for _, err := range unknown {
			i.warn("%s %s: %v, which %s does not have; it is left out", t.Kind, name(object), err, t.APIVersion)
		}
	}
	meta, spec := podOf(object)
	if spec == nil {
		return nil, fmt.Errorf("%s %s: spec.template is missing; write the Pod's template", t.Kind, name(object))
	}
	owner := &inject.Owner{Type: t, Name: types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}}
	if t.Kind == "Pod" {
		owner = nil
	}
	return object, i.inject(t.Kind+" "+name(object), owner, object.GetNamespace(), meta, spec)
}

func (i *Injector) warn(format string, a ...any) {
	i.Warnings = append(i.Warnings, fmt.Sprintf(format, a...))
}

func name(o metav1.Object) string {
	if o.GetNamespace() == "" {
		return o.GetName()
	}
	return o.GetNamespace() + "/" + o.GetName()
}

// kinds make the objects that have a Pod.
var kinds = map[string]func() metav1.Object{
	"v1 Pod":                   func() metav1.Object { return &corev1.Pod{} },
	"v1 ReplicationController": func() metav1.Object { return &corev1.ReplicationController{} },
	"apps/v1 Deployment":       func() metav1.Object { return &appsv1.Deployment{} },
	"apps/v1 DaemonSet":        func() metav1.Object { return &appsv1.DaemonSet{} },
	"apps/v1 ReplicaSet":       func() metav1.Object { return &appsv1.ReplicaSet{} },
	"apps/v1 StatefulSet":      func() metav1.Object { return &appsv1.StatefulSet{} },
	"batch/v1 Job":             func() metav1.Object { return &batchv1.Job{} },
	"batch/v1 CronJob":         func() metav1.Object { return &batchv1.CronJob{} },
}

// podOf returns the parts of an object that are a Pod's.
func podOf(object metav1.Object) (*metav1.ObjectMeta, *corev1.PodSpec) {
	var t *corev1.PodTemplateSpec
	switch o := object.(type) {
	case *corev1.Pod:
		return &o.ObjectMeta, &o.Spec
	case *corev1.ReplicationController:
		t = o.Spec.Template
	case *appsv1.Deployment:
		t = &o.Spec.Template
	case *appsv1.DaemonSet:
		t = &o.Spec.Template
	case *appsv1.ReplicaSet:
		t = &o.Spec.Template
	case *appsv1.StatefulSet:
		t = &o.Spec.Template
	case *batchv1.Job:
		t = &o.Spec.Template
	case *batchv1.CronJob:
		t = &o.Spec.JobTemplate.Spec.Template
	}
	if t == nil {
		return nil, nil
	}
	return &t.ObjectMeta, &t.Spec
}

// inject injects the Pod in place. what names the object in warnings. A template without a namespace is in its
// object's.
func (i *Injector) inject(what string, owner *inject.Owner, namespace string, meta *metav1.ObjectMeta, spec *corev1.PodSpec) error {
	pod := &corev1.Pod{ObjectMeta: *meta, Spec: *spec}
	own := pod.Namespace
	if own == "" {
		pod.Namespace = namespace
	}
	r := inject.Request{Pod: pod, Owner: owner, ProxyConfigs: i.ProxyConfigs, NativeSidecars: i.NativeSidecars}
	if i.Namespace != nil && pod.Namespace != "" {
		r.Namespace = i.Namespace(pod.Namespace)
	}
	result, err := i.Config.Inject(r)
	if err != nil && owner != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if err != nil {
		return err
	}
	for _, text := range result.Warnings {
		i.warn("%s: %s", what, text)
	}
	if !result.Injected {
		i.warn("%s is not injected: %s", what, result.Reason)
		return nil
	}
	*meta, *spec = result.Pod.ObjectMeta, result.Pod.Spec
	meta.Namespace = own
	return nil
}
