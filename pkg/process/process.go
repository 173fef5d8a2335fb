// Package process runs a program: Main handles signals and exit codes, Run runs a group of tasks that end together.
// Every cmd/<name>/main.go calls Main, and every service's composition calls Run.
package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
)

// Task is a part of a program that runs until the program ends, such as a server or a watcher.
type Task struct {
	// Name is in the error if the task fails.
	Name string
	// Run blocks until ctx ends or the task fails. If it returns earlier, even with nil, the whole group ends.
	Run func(ctx context.Context) error
}

// ErrEnded is the cause if a task returns nil before ctx ends.
var ErrEnded = errors.New("ended although nobody asked it to stop")

// Run runs all tasks and waits for all of them. The first task that returns before ctx ends cancels the others, and its
// error, with its name, is the result. After the end of ctx, a task that returns nil or ctx's error has stopped
// cleanly; if all have, the result is nil.
func Run(ctx context.Context, log *slog.Logger, tasks ...Task) error {
	group, cancel := context.WithCancel(ctx)
	defer cancel()

	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		first error
	)
	for _, task := range tasks {
		wg.Go(func() {
			err := task.Run(group)

			mu.Lock()
			defer mu.Unlock()
			stopping := group.Err() != nil
			switch {
			case stopping && (err == nil || errors.Is(err, group.Err())):
				log.Debug("task stopped", "task", task.Name)
				return
			case err == nil:
				err = ErrEnded
			}
			err = fmt.Errorf("%s: %w", task.Name, err)
			if first == nil {
				first = err
			} else {
				log.Warn("task failed while stopping", "task", task.Name, "error", err)
			}
			cancel()
		})
	}
	wg.Wait()
	return first
}
