/* What makes faulty_worker.c fail. */
#ifndef TEST_FAULTY_WORKER_H
#define TEST_FAULTY_WORKER_H

enum { FAULT_NAN = 4000, FAULT_LOST = 4001 }; /* tokens */

#endif
