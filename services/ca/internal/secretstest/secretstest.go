// Package secretstest serves Secrets for tests of what keeps its state in them.
package secretstest

import (
	"errors"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

// Resource is that of Secrets.
var Resource = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

// Versioned is an API server in this process that refuses an update of another version of a Secret than it has, as a
// real one does and client-go's fake does not.
func Versioned(objects ...runtime.Object) *fake.Clientset {
	api := fake.NewClientset(objects...)
	var mu sync.Mutex
	version := 0
	write := func(action k8stesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		object := action.(k8stesting.CreateAction).GetObject().(*corev1.Secret).DeepCopy()
		found, err := api.Tracker().Get(Resource, action.GetNamespace(), object.Name)
		if action.GetVerb() == "update" {
			if err != nil {
				return true, nil, err
			}
			if has := found.(*corev1.Secret).ResourceVersion; has != object.ResourceVersion {
				return true, nil, apierrors.NewConflict(Resource.GroupResource(), object.Name, errors.New("has changed"))
			}
		}
		version++
		object.ResourceVersion = strconv.Itoa(version)
		if action.GetVerb() == "create" {
			err = api.Tracker().Create(Resource, object, action.GetNamespace())
		} else {
			err = api.Tracker().Update(Resource, object, action.GetNamespace())
		}
		return true, object, err
	}
	api.PrependReactor("create", "secrets", write)
	api.PrependReactor("update", "secrets", write)
	return api
}
