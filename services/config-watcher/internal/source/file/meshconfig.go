package file

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/meshconfig"
)

// MeshConfig decodes files that hold a mesh configuration without an object around it, as --mesh-config-file does. It
// makes the ConfigMap in which Istio keeps it, so that it is handled like one from any other source.
func MeshConfig() Decoder { return Decoder{Decode: meshConfig, Restore: restoreMeshConfig} }

func meshConfig(name string, content []byte) Decoded {
	key := object.Key{Kind: "ConfigMap", Namespace: kinds.MeshNamespace, Name: kinds.MeshName}
	_, warnings, problems := meshconfig.Parse(name, content)
	if len(problems) > 0 {
		return Decoded{Refused: []object.Key{key}, Last: key, LastRefused: true, Problems: problems}
	}
	saved, err := json.Marshal(string(content))
	if err != nil {
		return Decoded{Refused: []object.Key{key}, Problems: object.Problems{{Location: name, Reason: err.Error()}}}
	}
	sum := sha256.Sum256([]byte(fmt.Sprintf("%s\x00%s", name, content)))
	return Decoded{Last: key, Contents: [][]byte{saved}, Objects: []*object.Object{{
		Key: key, APIVersion: "v1", Location: name + ":1", Digest: [16]byte(sum[:16]), Warnings: warnings,
		Body: &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name},
			Data:       map[string]string{kinds.MeshKey: string(content)},
		},
	}}}
}

// restoreMeshConfig makes the object again from what meshConfig has saved.
func restoreMeshConfig(name string, _ int, saved []byte) (*object.Object, error) {
	var content string
	if err := json.Unmarshal(saved, &content); err != nil {
		return nil, err
	}
	d := meshConfig(name, []byte(content))
	if len(d.Objects) == 0 {
		return nil, d.Problems.Err()
	}
	return d.Objects[0], nil
}
