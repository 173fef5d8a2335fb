package mesh

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// Manifest is the mesh as users and Kubernetes write it: Namespaces, Services, Pods and the rules. Each document is
// JSON, which is YAML.
func (m Spec) Manifest() ([]byte, error) {
	documents, err := m.documents(object{"name": "app", "image": "app"})
	var out bytes.Buffer
	for _, doc := range documents {
		out.WriteString("---\n")
		out.Write(doc)
		out.WriteByte('\n')
	}
	return out.Bytes(), err
}

// YAML returns the documents of Manifest one by one, in the block style that people write.
func (m Spec) YAML() ([][]byte, error) {
	documents, err := m.documents(longContainer)
	if err != nil {
		return nil, err
	}
	for i, doc := range documents {
		if documents[i], err = yaml.JSONToYAML(doc); err != nil {
			return nil, err
		}
	}
	return documents, nil
}

// documents are the objects of the mesh as JSON. Each Pod has the container.
func (m Spec) documents(container object) ([][]byte, error) {
	var out [][]byte
	for _, r := range m.Resources() {
		doc, err := document(r, container)
		if err != nil {
			return nil, err
		}
		if doc == nil {
			continue
		}
		raw, err := json.Marshal(doc)
		if err != nil {
			return nil, err
		}
		out = append(out, raw)
	}
	return out, nil
}

type object = map[string]any

// longContainer is about as long as people write them. config-watcher reads only its ports.
var longContainer = object{
	"name": "app", "image": "registry.example.com/shop/app:v1.2.3", "imagePullPolicy": "IfNotPresent",
	"ports":     []object{{"name": "http", "containerPort": 8080, "protocol": "TCP"}},
	"resources": object{"requests": object{"cpu": "100m", "memory": "128Mi"}, "limits": object{"memory": "256Mi"}},
	"env": []object{{"name": "LOG_LEVEL", "value": "info"}, {"name": "LISTEN", "value": "0.0.0.0:8080"},
		{"name": "REGION", "value": "eu-west-1"}},
	"readinessProbe": object{"httpGet": object{"path": "/ready", "port": 8080}, "periodSeconds": 5},
}

// document is the object that a resource comes from; nil for resources that config-watcher makes of others.
func document(r *configv1.Resource, container object) (object, error) {
	k := r.GetKey()
	meta := object{"name": k.GetName(), "namespace": k.GetNamespace()}
	switch b := r.GetBody().(type) {
	case *configv1.Resource_Namespace:
		return object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": k.GetName(), "labels": b.Namespace.GetLabels()}}, nil
	case *configv1.Resource_Service:
		s := b.Service
		meta["name"] = s.GetName()
		if s.GetExportedTo()[0] != "*" {
			meta["annotations"] = object{"networking.istio.io/exportTo": s.GetExportedTo()[0]}
		}
		p := s.GetPorts()[0]
		return object{"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": object{
			"clusterIP": s.GetAddresses()[0], "selector": s.GetSelector(),
			"ports": []object{{"name": p.GetName(), "port": p.GetNumber(), "targetPort": p.GetTargetPort()}},
		}}, nil
	case *configv1.Resource_Workload:
		w := b.Workload
		labels := object{}
		for k, v := range w.GetLabels() {
			labels[k] = v
		}
		if w.GetTlsMode() == configv1.TlsMode_TLS_MODE_ISTIO {
			labels["security.istio.io/tlsMode"] = "istio"
		}
		meta["labels"] = labels
		ready := "True"
		if strings.HasPrefix(w.GetAddresses()[0], extraPrefix) {
			ready = "False" // no endpoint, see workload
		}
		return object{
			"apiVersion": "v1", "kind": "Pod", "metadata": meta,
			"spec": object{"serviceAccountName": w.GetServiceAccount(), "containers": []object{container}},
			"status": object{
				"phase": "Running", "podIP": w.GetAddresses()[0], "conditions": []object{{"type": "Ready", "status": ready}},
			},
		}, nil
	case *configv1.Resource_IstioConfig:
		spec, err := b.IstioConfig.GetSpec().UnmarshalNew()
		if err != nil {
			return nil, err
		}
		raw, err := protojson.Marshal(spec)
		if err != nil {
			return nil, err
		}
		version := b.IstioConfig.GetSource().GetApiVersion()
		return object{"apiVersion": version, "kind": k.GetKind(), "metadata": meta, "spec": json.RawMessage(raw)}, nil
	case *configv1.Resource_EndpointSet, *configv1.Resource_MeshConfig:
		return nil, nil
	default:
		return nil, fmt.Errorf("%s has no document", k)
	}
}
