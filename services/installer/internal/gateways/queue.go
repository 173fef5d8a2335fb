package gateways

import (
	"k8s.io/apimachinery/pkg/types"
)

// fair is the order of a work queue in which namespaces take turns, so that one that makes a thousand Gateways does not
// keep another waiting. It implements workqueue.Queue, whose caller has a lock.
type fair struct {
	// waiting are the Gateways of a namespace, in the order in which they came.
	waiting map[string][]types.NamespacedName
	// turns are the namespaces with Gateways that wait.
	turns []string
	n     int
}

func newFair() *fair { return &fair{waiting: map[string][]types.NamespacedName{}} }

// Touch implements workqueue.Queue: an item that is added again stays where it is.
func (f *fair) Touch(types.NamespacedName) {}

// Push implements workqueue.Queue.
func (f *fair) Push(item types.NamespacedName) {
	if len(f.waiting[item.Namespace]) == 0 {
		f.turns = append(f.turns, item.Namespace)
	}
	f.waiting[item.Namespace] = append(f.waiting[item.Namespace], item)
	f.n++
}

// Len implements workqueue.Queue.
func (f *fair) Len() int { return f.n }

// Pop implements workqueue.Queue.
func (f *fair) Pop() types.NamespacedName {
	namespace := f.turns[0]
	f.turns = f.turns[1:]
	list := f.waiting[namespace]
	item := list[0]
	if f.waiting[namespace] = list[1:]; len(list) > 1 {
		f.turns = append(f.turns, namespace)
	} else {
		delete(f.waiting, namespace)
	}
	f.n--
	return item
}
