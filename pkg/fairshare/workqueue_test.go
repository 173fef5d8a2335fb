package fairshare

import (
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/util/workqueue"
)

func TestOwnersTakeTurnsInAWorkQueue(t *testing.T) {
	t.Parallel()
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, time.Second)
	q := NewWorkQueue(limiter, func(item string) string { return item[:strings.Index(item, "/")] })
	defer q.ShutDown()
	for _, item := range []string{"many/1", "many/2", "many/3", "many/2", "few/1"} {
		q.Add(item)
	}
	for i, want := range []string{"many/1", "few/1", "many/2", "many/3"} {
		if got := q.Len(); got != 4-i {
			t.Errorf("%d wait, want %d", got, 4-i)
		}
		if got, _ := q.Get(); got != want {
			t.Errorf("%d is %s, want %s", i, got, want)
		}
	}
	q.Add("many/4")
	if got, _ := q.Get(); got != "many/4" {
		t.Errorf("got %s after all had gone", got)
	}
}
