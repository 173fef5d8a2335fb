package workload

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"fairlead.dev/services/installer/internal/inject"
)

// list injects the items of a List; those without a Pod stay as they are.
func (i *Injector) list(raw []byte) (any, error) {
	var list corev1.List
	if err := yaml.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("List: %w; list objects under items", err)
	}
	for n := range list.Items {
		object, err := i.object(list.Items[n].Raw)
		if err != nil {
			return nil, fmt.Errorf("items[%d]: %w", n, err)
		}
		if object == nil {
			continue
		}
		if list.Items[n].Raw, err = json.Marshal(object); err != nil {
			return nil, err
		}
	}
	return &list, nil
}

// deploymentConfig injects OpenShift's own kind of Deployment, whose API this program does not have: of its fields only
// the Pod's template is read and written.
func (i *Injector) deploymentConfig(raw []byte) (any, error) {
	var o struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Template *corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	var tree map[string]any
	if err := yaml.Unmarshal(raw, &o); err != nil {
		return nil, fmt.Errorf("DeploymentConfig: %w; correct the field", err)
	}
	if o.Spec.Template == nil {
		return nil, fmt.Errorf("DeploymentConfig %s: spec.template is missing; write the Pod's template", name(&o))
	}
	if err := yaml.Unmarshal(raw, &tree); err != nil {
		return nil, err
	}
	owner := &inject.Owner{Type: o.TypeMeta, Name: types.NamespacedName{Namespace: o.Namespace, Name: o.Name}}
	t := o.Spec.Template
	if err := i.inject("DeploymentConfig "+name(&o), owner, o.Namespace, &t.ObjectMeta, &t.Spec); err != nil {
		return nil, err
	}
	spec, _ := tree["spec"].(map[string]any)
	spec["template"] = t
	return tree, nil
}
